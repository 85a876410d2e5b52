// SPDX-License-Identifier: Apache-2.0
//
// The chain of index maps by which waves read a weight and activations: those of the layouts that
// lowering declares its registers with.
#include <sstream>

#include "base/error.h"
#include "layout/index_map.h"
#include "layout/weight_image.h"
#include "pipelines/linear/image_fit.h"
#include "pipelines/waves/schedule.h"

namespace ladder {

std::vector<NamedMap> maps_of(const WaveSchedule& s, const Decisions& decisions) {
  const MatrixInstruction& row = *instruction_of(s, decisions);
  const ImageFit fit(row, 2 * kUnits);
  const auto pitch = wave_memory(s, decisions.problem).x_pitch;
  const std::string name(row.name), of_step = " of " + std::to_string(row.step_columns()) + ")";
  const std::string product = row.parts() > 1 ? "product, " : "";
  return {
      {"A of " + name + ": (lane, slot) to (" + product + "row, k)", index_map(row.a())},
      {"B: to (" + product + "token, k)", index_map(row.b())},
      {"sums: to (" + product + "row, token)", index_map(row.d())},
      {"weights of a wave in a k-step: (lane, slot) to (1, row of 128, column" + of_step,
       index_map(fit.a())},
      {"words of a wave in a block of 64 columns: to (block of rows, 1, chunk, lane of the image, "
       "word)",
       index_map(fit.words(decisions.problem.weight.bits))},
      {"activations: to (1, token, column" + of_step, index_map(fit.b(s.wave_tokens()))},
      {"activations in shared memory: (token, column) to element",
       index_map({s.tokens, s.tile_columns()},
                 [&](const IndexExprs& x) { return IndexExprs{x[0] * pitch + x[1]}; })},
      {"sums of a wave: to (part, row, token)", index_map(fit.sums(s.wave_tokens()))},
  };
}

std::string to_string(const std::vector<NamedMap>& maps) {
  std::ostringstream out;
  for (const auto& [name, map] : maps) {
    out << name << ":\n  " << to_string(map) << '\n';
    if (const auto back = inverse(map)) out << "  back: " << to_string(*back) << '\n';
  }
  return out.str();
}

}  // namespace ladder
