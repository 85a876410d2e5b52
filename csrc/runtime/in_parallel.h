// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace ladder {

/// body(0) .. body(count - 1), on as many threads as the machine has processors, the calling one
/// among them, each of which takes the next number when it is done with one. Returns when all have
/// ended. Of what the calls throw one is thrown again then; after it no further call begins.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace ladder
