// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace ladder {

InvalidArgument::~InvalidArgument() = default;
Unsupported::~Unsupported() = default;
ToolchainError::~ToolchainError() = default;
InternalError::~InternalError() = default;

}  // namespace ladder
