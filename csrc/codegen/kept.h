// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace ladder {

/// The data of a driver's user object, for Driver::keep_with. An object that is released before it
/// is retained would be let go: without `let_go` it is not.
struct Kept {
  void* object;
  void (*let_go)(void*);

  /// The user object's destructor.
  static void destroyed(void* data) {
    const std::unique_ptr<Kept> mine(static_cast<Kept*>(data));
    if (mine->let_go != nullptr) mine->let_go(mine->object);
  }
};

}  // namespace ladder
