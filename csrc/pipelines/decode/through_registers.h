// SPDX-License-Identifier: Apache-2.0
//
// One k-tile, all loads at once; or the next k-tile's words on their way to registers while those
// of one are multiplied. Internal to this folder.
#pragma once

#include "pipelines/decode/lowering.h"

namespace ladder {

class ThroughRegisters final : public DecodeLowering {
 public:
  ThroughRegisters(const Decisions& decisions, const DecodeSchedule& schedule)
      : DecodeLowering(decisions, schedule,
                       {.early = schedule.bulk_copy() != nullptr || schedule.dependent_launch}) {}

 private:
  void main_loop(Body& body) override;
  /// A k-tile on its way to other registers, and from these to the ones that are used.
  void load_next(Body& body, const Affine& k_tile);
  void take_next(Body& body);

  RegisterId next_words_ = -1;
};

}  // namespace ladder
