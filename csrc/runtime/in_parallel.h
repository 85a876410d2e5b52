// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace ladder {

/// body(0) .. body(count - 1), on as many threads as the machine has processors, the calling thread
/// among them. Each thread takes the next number when its call has ended. Returns when all calls
/// have. Where calls throw, the last exception is thrown again then, and numbers that no thread had
/// taken are left out.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace ladder
