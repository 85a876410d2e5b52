// SPDX-License-Identifier: Apache-2.0
// Which ways of weights and activations go together, and what each asks of the layer and the
// device.
#include "base/joined.h"
#include "layout/weight_image.h"
#include "pipelines/decode/objection.h"
#include "pipelines/linear/objection.h"
#include "program/program.h"

namespace ladder {
namespace {

std::string counts(const weights::AtOnce&) { return {}; }
std::string counts(const weights::DoubleBuffered& w) {
  return count_objection({{"k-tiles through registers", 2, w.k_tiles}});
}
std::string counts(const weights::Ring& w) {
  return count_objection({{"k-tiles", 1, w.k_tiles}, {"stages", 2, w.stages}});
}
std::string counts(const weights::RegisterStages& w) {
  return count_objection({{"k-tiles", 1, w.k_tiles},
                          {"register stages", 1, w.stages},
                          {"tiles per CTA", 1, w.tiles_per_cta},
                          {"reduction buffers", 1, w.reduction_buffers}});
}
std::string counts(const activations::AtOnce&) { return {}; }
std::string counts(const activations::Staged& x) {
  return count_objection({{"activation stages", 1, x.stages}});
}
std::string counts(const activations::Signalled& x) {
  return count_objection({{"activation stages", 1, x.stages}, {"consumer lag", 1, x.consumer_lag}});
}
std::string counts(const activations::BulkCopy& x) {
  return count_objection({{"multicast", 1, x.multicast}});
}

/// Activations in stages, with barriers or signals.
std::string objection_to_stages(int stages, const DecodeSchedule& s) {
  if (stages < 2 || stages > s.k_tiles()) {
    return joined("activation stages ", stages, " of ", s.k_tiles(), " k-tiles");
  }
  if (s.route == Route::digits) return "digits of activations are staged at once";
  if (const auto* w = s.register_stages(); w != nullptr && stages % w->stages != 0) {
    return joined("activation stages ", stages, ", register stages ", w->stages);
  }
  if (const auto* w = s.ring(); w != nullptr && (stages != w->stages || s.dependent_launch)) {
    return joined("activation stages ", stages, ", stages ", w->stages, " of weights");
  }
  return {};
}

std::string objection_to(const activations::AtOnce&, const DecodeSchedule&, const Decisions&) {
  return {};
}

std::string objection_to(const activations::Staged& x, const DecodeSchedule& s, const Decisions&) {
  if (auto why = objection_to_stages(x.stages, s); !why.empty()) return why;
  if (s.tiles_per_cta() > 1 && s.k_tiles() % x.stages != 0) {
    return joined("tiles of ", s.k_tiles(), " k-tiles, activation stages ", x.stages);
  }
  return {};
}

std::string objection_to(const activations::Signalled& x, const DecodeSchedule& s,
                         const Decisions& decisions) {
  if (auto why = objection_to_stages(x.stages, s); !why.empty()) return why;
  if (!decisions.device->signals()) return "a consumer lag is for devices that wait for signals";
  if (x.consumer_lag > x.stages - 2) {
    return joined("consumer lag ", x.consumer_lag, ", activation stages ", x.stages);
  }
  if (s.ring() != nullptr) return "a consumer lag is for weights through registers";
  if (s.tiles_per_cta() > 1) {
    return joined("consumer lag ", x.consumer_lag, ", tiles per CTA ", s.tiles_per_cta());
  }
  return {};
}

std::string objection_to(const activations::BulkCopy& x, const DecodeSchedule& s,
                         const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const auto row_bytes = problem.k * bytes_of(problem.activation());
  if (!device.bulk_copy()) return "no copy engine";
  if (s.route == Route::digits) return "digits are made by threads";
  if (x.by_k_tiles && (s.k_tiles() == 1 || s.tiles_per_cta() > 1)) {
    return joined("a bulk copy by ", s.k_tiles(), " k-tiles, tiles per CTA ", s.tiles_per_cta());
  }
  if (s.ring() != nullptr) return "a bulk copy brings activations before k-tiles in registers";
  if (problem.permuted_columns || row_bytes % decisions.of(s.route).hint.granularity_bytes != 0 ||
      problem.k % s.cta_columns() != 0) {
    return joined(problem.k, " columns are not whole rows of ", s.cta_columns());
  }
  if (x.multicast > 1 && (s.reduction == Reduction::cluster || x.multicast > device.max_cluster)) {
    return joined("a cluster of ", x.multicast, " tiles");
  }
  return {};
}

std::string objection_to(const weights::AtOnce&, const DecodeSchedule&, const Decisions&) {
  return {};
}

std::string objection_to(const weights::DoubleBuffered&, const DecodeSchedule&, const Decisions&) {
  return {};
}

std::string objection_to(const weights::Ring& w, const DecodeSchedule&,
                         const Decisions& decisions) {
  const bool idle = w.stages > w.k_tiles + 1 || !decisions.device->async_copy();
  return idle ? "idle stages" : "";
}

std::string objection_to(const weights::RegisterStages& w, const DecodeSchedule& s,
                         const Decisions& decisions) {
  if (w.k_tiles % w.stages != 0) {
    return joined(w.k_tiles, " k-tiles, register stages ", w.stages);
  }
  const auto group = decisions.problem.group_size();
  if (w.block_by_block && (w.k_tiles <= w.stages || s.blocks_per_warp == 1 ||
                           group < std::int64_t{kBlock} * s.blocks_per_warp)) {
    return joined("block by block: ", s.blocks_per_warp, " in a k-tile, ", w.k_tiles,
                  " k-tiles, register stages ", w.stages, ", groups of ", group);
  }
  if (w.reduction_buffers != 1 && (w.reduction_buffers != 2 || w.tiles_per_cta == 1)) {
    return joined("reduction buffers ", w.reduction_buffers, ", tiles per CTA ", w.tiles_per_cta);
  }
  if (w.tiles_per_cta > 1 && s.reduction == Reduction::ordered) {
    return "several tiles per CTA are for sums that wait in shared memory";
  }
  return {};
}

}  // namespace

std::string way_count_objection(const DecodeSchedule& s) {
  const auto of = [](const auto& way) { return counts(way); };
  const auto why = std::visit(of, s.weights);
  return why.empty() ? std::visit(of, s.activations) : why;
}

std::string activation_objection(const DecodeSchedule& s, const Decisions& decisions) {
  return std::visit([&](const auto& x) { return objection_to(x, s, decisions); }, s.activations);
}

std::string weight_objection(const DecodeSchedule& s, const Decisions& decisions) {
  return std::visit([&](const auto& w) { return objection_to(w, s, decisions); }, s.weights);
}

}  // namespace ladder
