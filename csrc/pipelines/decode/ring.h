// SPDX-License-Identifier: Apache-2.0
//
// K-tiles through a ring in shared memory, to which each lane copies what it later reads itself: no
// barrier is needed, only its own wait. Internal to this folder.
#pragma once

#include "pipelines/decode/lowering.h"

namespace ladder {

class RingLowering final : public DecodeLowering {
 public:
  RingLowering(const Decisions& decisions, const DecodeSchedule& schedule,
               const weights::Ring& ring)
      : DecodeLowering(decisions, schedule, {}), way_(ring) {}

 private:
  void load_first(Body& body) override;
  void main_loop(Body& body) override;
  void declare_ring();
  Layout groups_in_registers(const PerGroup& part) const override;
  /// Where a k-tile lies in the ring of words, and in those of scales and zero points.
  std::vector<Affine> word_place(const Affine& k_tile) const;
  std::vector<Affine> group_place(const Affine& k_tile) const;
  /// Starts the copies of a k-tile; always closes a group, so that groups count k-tiles.
  void fetch(Body& body, const Affine& k_tile);
  /// The words, scales and zero points of a k-tile out of the ring.
  void load_k_tile(Body& body, const Affine& k_tile);

  const weights::Ring& way_;
  ViewId ring_ = -1;
  VariableId k_tile_ = -1;
};

}  // namespace ladder
