// SPDX-License-Identifier: Apache-2.0
//
// K-tiles in registers of their own, each loaded anew as soon as it was multiplied; a CTA may go
// over several tiles of rows, one after the other. Internal to this folder.
#pragma once

#include "pipelines/decode/lowering.h"

namespace ladder {

class RegisterStagesLowering final : public DecodeLowering {
 public:
  RegisterStagesLowering(const Decisions& decisions, const DecodeSchedule& schedule,
                         const weights::RegisterStages& way);

 private:
  void multiply(Body& body) override;
  void main_loop(Body& body) override { k_tiles_of_tile(body, 0); }
  void k_tiles_of_tile(Body& body, const Affine& tile);
  /// As many k-tiles in a loop as have whole turns of the stages, but for the last ones.
  void loop_of_turns(Body& body, int turns, const Affine& tile);
  /// A k-tile that is written out.
  void one_k_tile(Body& body, int k_tile, const Affine& tile);
  /// Multiplies and adds up one tile of rows after the other.
  void persistent_loop(Body& body);
  /// Sums of activations times the zero point, which all tiles share.
  void multiply_zeros(Body& body);

  const weights::RegisterStages& way_;
  std::vector<RegisterId> zero_sums_;  // by k-tile, where all tiles of rows share them
};

}  // namespace ladder
