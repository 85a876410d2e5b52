// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/literal.h"

#include <cstdio>

namespace ladder {

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08xu", value);
  return text;
}

std::string literal(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%af", value);
  return text;
}

}  // namespace ladder
