// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

/// A new file for reading and writing that has no name and is closed in programs that this process
/// starts; -1, with errno, when there is none.
int unnamed_file();

}  // namespace ladder
