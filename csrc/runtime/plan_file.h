// SPDX-License-Identifier: Apache-2.0
//
// plans.json: the fastest schedules that somebody measured, as text.
//
//     {"format": 1,
//      "plans": {"<expression> on <device>": "<schedule>"},
//      "measured": {"<expression> on <device>": 8}}
//
// "measured" says of how many schedules a plan was the fastest. A file without it is a file of
// plans all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "runtime/folder.h"

namespace ladder {

struct StoredPlan {
  StoredPlan(std::string schedule, std::int64_t measured = 0)
      : schedule(std::move(schedule)), measured(measured) {}
  StoredPlan(const char* schedule) : StoredPlan(std::string(schedule)) {}

  std::string schedule;
  std::int64_t measured;  ///< schedules that it was the fastest of; 0: not said
};

/// The plan of `problem` in the folder's plans.json. The file is parsed when it has changed since
/// this process read it.
std::optional<StoredPlan> read_plan(const Folder& folder, const std::string& problem);

/// Adds a plan to the file in `folder`, which follows no links. The file appears whole, and what
/// other processes add at the same time stays. Where it is a link, it becomes a file of its own
/// with the plans of what the link names in `read`, the same folder. What cannot be written is not
/// kept: nothing here throws for what the disk refuses.
void write_plan(const Folder& folder, const Folder& read, const std::string& problem,
                const StoredPlan& plan);

}  // namespace ladder
