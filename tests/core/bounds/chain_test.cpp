// SPDX-License-Identifier: Apache-2.0
// Figures 18, 20, 21 and 22 of the paper: buffers in bytes, traffic in words of two bytes.
#include "bounds/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "bounds/mesa.h"

namespace ladder::bounds {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::ThrowsMessage;

constexpr double kMiB = 1048576;

std::vector<Point> words(const Curve& curve) { return curve.scaled(1, 0.5).points(); }
Point last(const Curve& curve) { return words(curve).back(); }

/// Points that the figure shows, whose axis ends at `most` words.
std::ptrdiff_t visible(const Curve& curve, double most) {
  return std::ranges::count_if(words(curve), [&](Point p) { return p.traffic_bytes < most; });
}

std::vector<Layer> mlp() { return {{"fc1", 32768, 4096, 16384}, {"fc2", 32768, 16384, 4096}}; }

std::vector<Layer> attention() {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  return {chain[1], chain[2]};
}

Curve with_side(const Curve& chain) {
  const Curve parts[] = {chain, unfused(gpt3_6_7b_side())};
  return sum(parts);
}

TEST(MlpPair, unfused_is_the_curve_of_figure_eighteen) {
  const Curve curve = unfused(mlp());
  EXPECT_EQ(last(curve), (Point{134258688, 1476395008}));
  EXPECT_EQ(last(curve).traffic_bytes * 2, algorithmic_minimum(mlp()));
  EXPECT_EQ(visible(curve, 1.2922e12), 33);
  EXPECT_EQ(words(curve)[9].buffer_bytes, 146);
}

TEST(MlpPair, fused_as_published_is_the_curve_of_figure_eighteen) {
  const Curve curve = fused(mlp(), Accounting::paper);
  EXPECT_EQ(visible(curve, 1.2922e12), 35);
  EXPECT_THAT(words(curve),
              IsSupersetOf({Point{8390658, 4563402752}, Point{16781314, 2415919104},
                            Point{33562626, 1342177280}, Point{67125250, 805306368},
                            Point{134250498, 536870912}, Point{268484608, 402653184}}));
  EXPECT_NEAR(last(unfused(mlp())).traffic_bytes / last(curve).traffic_bytes, 3.667, 5e-4);
}

TEST(MlpPair, fused_as_published_gains_from_eight_mebibytes_on) {
  const Curve apart = unfused(mlp()), together = fused(mlp(), Accounting::paper);
  for (double size = 1024; size < 8 * kMiB; size *= 2) {
    EXPECT_GT(together.at(size), apart.at(size));
  }
  for (double size = 8390658; size < 1e9; size *= 1.05) {
    EXPECT_LT(together.at(size), apart.at(size));
  }
}

TEST(MlpPair, honestly_counted_gains_little_until_its_weights_fit) {
  const Curve apart = unfused(mlp()), together = fused(mlp()),
              published = fused(mlp(), Accounting::paper);
  EXPECT_EQ(last(together), (Point{268451842, 402653184}));
  const auto gain = [&](const Curve& curve, double size) {
    return apart.at(size) / curve.at(size);
  };
  EXPECT_NEAR(gain(published, 50 * kMiB), 1.75, 5e-3);
  EXPECT_NEAR(gain(together, 50 * kMiB), 1.03, 5e-3);
  EXPECT_NEAR(gain(together, 32.004 * kMiB), 1.42, 5e-3);
  EXPECT_NEAR(gain(together, 257 * kMiB), 3.667, 5e-4);
  EXPECT_LT(gain(together, 48 * kMiB), 1);
  for (double size = 48.01 * kMiB; size < 1e9; size *= 1.01) EXPECT_GE(gain(together, size), 1);
}

TEST(MlpPair, untiled_needs_the_whole_intermediate) {
  const Curve curve = untiled(mlp());
  EXPECT_GE(curve.points()[0].buffer_bytes, 1024 * kMiB);
  EXPECT_LT(curve.points()[0].buffer_bytes, 1024 * kMiB + 16);
  EXPECT_EQ(last(curve).traffic_bytes * 2, fused_minimum(mlp()));
}

TEST(Attention, unfused_flat_and_flash_are_the_curves_of_figure_twenty) {
  const std::vector<Layer> pair = attention();
  EXPECT_EQ(last(unfused(pair, true)), (Point{16916480, 4831838208}));
  EXPECT_EQ(words(unfused(pair, true)).size(), 19);
  EXPECT_EQ(words(flat(pair, Accounting::paper)).size(), 10);
  EXPECT_THAT(words(flat(pair, Accounting::paper)),
              IsSupersetOf({Point{16785472, 4563402752}, Point{33570880, 2415919104},
                            Point{33701888, 536870912}}));
  EXPECT_THAT(words(flash(pair, Accounting::paper)),
              IsSupersetOf({Point{8462336, 687865856}, Point{33701888, 536870912}}));
  EXPECT_NEAR(33701888 / kMiB, 32.14, 5e-3);
}

TEST(Attention, flash_order_moves_six_times_less_than_flat_near_sixteen_mebibytes) {
  const Curve rows = flat(attention(), Accounting::paper);
  const Curve columns = flash(attention(), Accounting::paper);
  EXPECT_NEAR(rows.at(16785472) / columns.at(16785472), 6.634, 5e-4);
  EXPECT_NEAR(rows.at(16 * kMiB) / columns.at(16 * kMiB), 12.88, 5e-3);
}

TEST(Attention, heads_one_by_one_with_all_that_they_need) {
  const std::vector<Layer> pair = attention();
  const auto near = [](const Curve& curve, double kibibytes, double expected) {
    EXPECT_NEAR(curve.at(kibibytes * 1024) / 2, expected, 0.005e9) << kibibytes;
  };
  near(unfused(pair), 128, 6.71e9);
  near(fused(pair), 128, 4.56e9);
  near(flash(pair), 128, 6.58e9);
  near(unfused(pair), 512, 5.10e9);
  near(fused(pair), 512, 1.34e9);
  near(flash(pair), 512, 1.74e9);
  EXPECT_EQ(last(fused(pair)), (Point{1049090, 536870912}));
  EXPECT_EQ(2 * 536870912.0, fused_minimum(pair));
}

TEST(SixLayers, fused_as_published_are_the_curve_of_figure_twenty_one) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  const Curve curve = fused(chain, Accounting::paper);
  EXPECT_EQ(words(curve).size(), 25);
  EXPECT_EQ(last(curve), (Point{335585280, 704643072}));
  EXPECT_EQ(2 * 704643072.0, fused_minimum(chain));
  EXPECT_EQ(segmented(chain, Accounting::paper).at(33701889) / 2, 2717908992);
}

TEST(SixLayers, honestly_counted_need_all_weights_at_once) {
  EXPECT_EQ(last(fused(gpt3_6_7b_chain())), (Point{369238016, 704643072}));
}

TEST(Block, segments_as_published_are_the_curve_of_figure_twenty_two) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  const Curve apart = with_side(unfused(chain));
  const Curve best = with_side(segmented(chain, Accounting::paper));
  EXPECT_EQ(last(apart).traffic_bytes, 7449083904);
  EXPECT_EQ(apart.at(50 * kMiB) / 2, 8321499136);
  EXPECT_EQ(best.at(50 * kMiB) / 2, 3288334336);
  EXPECT_NEAR(apart.at(50 * kMiB) / best.at(50 * kMiB), 2.531, 5e-4);
  EXPECT_EQ(best.at(33570816) / 2, 3439329280);  // 4177526700 where segments must share M0
  EXPECT_EQ(last(best).traffic_bytes, 704643072 + 2 * 285212672.0);
  EXPECT_NEAR(7449083904 / last(best).traffic_bytes, 5.842, 5e-4);
  // The paper's 5.6 divides a sum that reads keys and values of one sequence out of sixteen.
  const double keys_and_values = 2 * 134217728.0 * 15 / 16;
  EXPECT_NEAR((7449083904 - keys_and_values) / last(best).traffic_bytes, 5.645, 5e-4);
}

TEST(Block, honestly_counted_pairs_halve_the_traffic_at_fifty_mebibytes) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  const std::span<const Layer> layers(chain);
  const double size = 50 * kMiB;
  const Curve ways[] = {fused(mlp()), flash(mlp()), unfused(mlp())};
  const double pairs = with_side(unfused(layers.subspan(0, 1))).at(size) +
                       fused(attention()).at(size) + unfused(layers.subspan(3, 1)).at(size) +
                       envelope(ways).at(size);
  EXPECT_EQ(pairs / 2, 3959422976);
  EXPECT_NEAR(with_side(unfused(chain)).at(size) / pairs, 2.10, 5e-3);
  // Fusing the output projection with the first layer of the MLP is a little better still.
  EXPECT_EQ(with_side(segmented(chain)).at(size) / 2, 3942645760);
}

TEST(Block, best_segments_add_up_to_the_curve) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  for (const Accounting accounting : {Accounting::sound, Accounting::paper}) {
    const Curve curve = segmented(chain, accounting);
    for (const double size : {1e5, 1e6, 1e7, 5e7, 1e9}) {
      double traffic = 0;
      int next = 0;
      for (const Segment& s : best_segments(chain, size, accounting)) {
        EXPECT_EQ(s.first, next);
        next += s.count;
        traffic += s.traffic_bytes;
      }
      EXPECT_EQ(next, 6);
      EXPECT_EQ(traffic, curve.at(size));
    }
  }
}

TEST(Block, provisioning_is_that_of_figure_twenty_three) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  const auto balanced = [](const Curve& bytes) {
    return balanced_provision(provisions(bytes.scaled(1, 0.5), kGpt3BlockOperations, paper_area()));
  };
  const Provision apart = balanced(with_side(unfused(chain)));
  const Provision best = balanced(with_side(segmented(chain, Accounting::paper)));
  EXPECT_NEAR(apart.buffer_bytes / 1e6, 113.83, 5e-3);
  EXPECT_NEAR(apart.share, 0.697, 5e-4);
  EXPECT_NEAR(apart.memory_operations_per_second / 1e12, 273.4, 0.05);
  EXPECT_NEAR(best.buffer_bytes / 1e6, 46.19, 5e-3);
  EXPECT_NEAR(best.share, 0.283, 5e-4);
  EXPECT_NEAR(best.memory_operations_per_second / 1e12, 647.2, 0.05);
  EXPECT_NEAR(best.memory_operations_per_second / apart.memory_operations_per_second, 2.37, 5e-3);
  EXPECT_NEAR(1 - best.buffer_bytes / apart.buffer_bytes, 0.594, 5e-4);
}

TEST(Block, provisioning_in_consistent_units_wants_larger_buffers) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  AreaModel area = paper_area();
  area.operations_per_multiplication = 2;
  const double ops = operations(chain) + operations(gpt3_6_7b_side());
  const auto best = [&](const Curve& bytes) {
    return best_provision(provisions(bytes, ops, area));
  };
  const Provision apart = best(with_side(unfused(chain)));
  const Provision fused = best(with_side(segmented(chain, Accounting::paper)));
  EXPECT_NEAR(apart.buffer_bytes / 1e6, 135.3, 0.05);
  EXPECT_NEAR(apart.operations_per_second / 1e12, 141.8, 0.1);
  EXPECT_NEAR(fused.buffer_bytes / 1e6, 102.3, 0.05);
  EXPECT_NEAR(fused.operations_per_second / 1e12, 542.8, 0.2);
}

TEST(Chain, published_accounting_is_never_above_the_honest_one) {
  for (const std::vector<Layer>& chain : {mlp(), gpt3_6_7b_chain()}) {
    const Curve honest = fused(chain), published = fused(chain, Accounting::paper);
    for (const Point& p : honest.points()) {
      if (p.buffer_bytes < 1e6) continue;  // heads one by one need less than published there
      EXPECT_LE(published.at(p.buffer_bytes + 32768), p.traffic_bytes) << p.buffer_bytes;
    }
  }
}

TEST(Chain, segments_are_never_worse_than_no_fusion_and_never_below_the_minimum) {
  const std::vector<Layer> chain = gpt3_6_7b_chain();
  const Curve best = segmented(chain), apart = unfused(chain);
  for (const Point& p : apart.points()) EXPECT_LE(best.at(p.buffer_bytes), p.traffic_bytes);
  EXPECT_GE(best.max_effectual().traffic_bytes, fused_minimum(chain));
}

TEST(Chain, narrow_weights_fit_sooner) {
  std::vector<Layer> narrow = mlp();
  for (Layer& layer : narrow) layer.weight_bytes = 0.5;
  EXPECT_LT(fused(narrow).max_effectual().buffer_bytes, 0.26 * 268451842);
}

TEST(Chain, layers_that_do_not_match_are_refused) {
  const auto refused = [](std::vector<Layer> chain, const char* why) {
    EXPECT_THAT([&] { segmented(chain); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused({}, "without layers");
  refused({{"a", 4, 4, 8}, {"b", 4, 9, 4}}, "layer b reads 9 columns, layer a before it writes 8");
  refused({{"a", 4, 4, 8}, {"b", 5, 8, 4}}, "layer b has 5 rows");
  refused({{"a", 4, 0, 8}}, "a size of layer a is 0");
  refused({{"a", 4, 4, 8, 1, 3}}, "4 rows of layer a do not divide into 3");
  refused({{"a", 1ll << 40, 1 << 12, 1 << 12}}, "does not fit 63 bits");
  EXPECT_THROW(flash(gpt3_6_7b_chain()), InvalidArgument);
  EXPECT_THROW(best_segments(mlp(), 1), InvalidArgument);
}

}  // namespace
}  // namespace ladder::bounds
