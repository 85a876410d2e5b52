// SPDX-License-Identifier: Apache-2.0
#include "codegen/activations/words.h"

namespace ladder::activations {

std::string text_of(const Words& words, std::string text, std::initializer_list<Part> parts) {
  for (const auto& [what, by] : parts) {
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
      text.replace(at, what.size(), by);
    }
  }
  return std::string(words.prelude()) + text;
}

}  // namespace ladder::activations
