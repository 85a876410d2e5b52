// SPDX-License-Identifier: Apache-2.0
#include "schedule/primitives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "device/device.h"
#include "expr/resnet18.h"
#include "layout/conflicts.h"
#include "schedule/tile_moves.h"

namespace ladder {
namespace {

CodeTile codes(const char* type, double zero, Shape shape) {
  const Element& format = element(type);
  CodeTile tile{{&format, zero}, shape, {}};
  std::int64_t n = 1;
  for (auto extent : shape) n *= extent;
  for (std::int64_t i = 0; i < n; ++i) {
    tile.codes.push_back(static_cast<std::uint32_t>((i * 7 + i / 5) % format.code_count()));
  }
  return tile;
}

TEST(Primitive, padding_and_cutting_the_padding_off_changes_nothing) {
  const auto tile = codes("uint4", 8, {5, 7});
  const Pad pad{{1, 0}, {2, 9}, padding_code(tile.type)};
  const auto wide = transformed(pad, tile);
  EXPECT_EQ(wide.shape, (Shape{8, 16}));
  EXPECT_EQ(transformed(Slice{{1, 0}, {5, 7}}, wide), tile);
  // What was added is worth nothing: sums stay what they were.
  const auto before = values(tile), after = values(wide);
  EXPECT_EQ(std::accumulate(before.begin(), before.end(), 0.0),
            std::accumulate(after.begin(), after.end(), 0.0));
}

TEST(Primitive, a_slice_holds_the_codes_of_its_box) {
  const auto tile = codes("uint8", 0, {6, 10});
  const auto box = transformed(Slice{{2, 3}, {3, 4}}, tile);
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(box.codes[r * 4 + c], tile.codes[(r + 2) * 10 + c + 3]);
    }
  }
}

TEST(Primitive, converting_to_a_type_that_holds_every_value_is_decoding) {
  const TileType f16{&element("float16")};
  for (const Element* type : elements()) {
    if (type->bits > 8 || !converts_exactly(*type, *f16.element)) continue;
    const auto tile = codes(type->name.data(), 0, {type->code_count()});
    const auto out = transformed(ConvertTo{f16}, tile);
    for (std::size_t i = 0; i < tile.codes.size(); ++i) {
      const double want = decode(*type, tile.codes[i]);
      const double got = decode(*f16.element, out.codes[i]);
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << type->name;
    }
  }
}

TEST(Primitive, converting_subtracts_the_zero_point_and_rounds_to_nearest) {
  const TileType f16{&element("float16")};
  const auto u4 = transformed(ConvertTo{f16}, codes("uint4", 8, {16}));
  EXPECT_EQ(values(u4), values(codes("uint4", 8, {16})));
  const auto nf4 = codes("nf4", 0, {16});
  const auto rounded = transformed(ConvertTo{f16}, nf4);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(rounded.codes[i], encode(*f16.element, values(nf4)[i]));
  }
}

TEST(Primitive, a_map_is_undone_by_the_inverse_of_its_index_map) {
  const auto tile = codes("uint8", 0, {16, 64});
  const MapTo map{piece_map({16, 64}, {16, 16}, 64)};
  const auto stored = transformed(map, tile);
  EXPECT_EQ(stored.shape, (Shape{4, 4, 64}));
  EXPECT_NE(stored.codes, tile.codes);
  EXPECT_EQ(transformed(inverse(map), stored), tile);
}

TEST(Primitive, every_padding_code_is_worth_zero_where_the_type_has_a_zero) {
  EXPECT_EQ(padding_code({&element("nf4")}), 7u);
  EXPECT_EQ(padding_code({&element("uint4"), 8}), 8u);
  EXPECT_EQ(padding_code({&element("float16")}), 0u);
  EXPECT_EQ(padding_code({&element("int1")}), 0u);  // has no zero
}

TEST(Primitive, what_does_not_fit_the_tile_is_refused) {
  const auto tile = codes("uint4", 0, {4, 4});
  EXPECT_THROW(transformed(Slice{{2, 0}, {3, 4}}, tile), InvalidArgument);
  EXPECT_THROW(transformed(Pad{{0, 0}, {1, 1}, 16}, tile), InvalidArgument);
  EXPECT_THROW(transformed(Pad{{0}, {1}, 0}, tile), InvalidArgument);
  EXPECT_THROW(transformed(MapTo{piece_map({4, 8}, {4, 4}, 8)}, tile), InvalidArgument);
  EXPECT_THROW(transformed(MapTo{index_map({4, 4},
                                           [](const IndexExprs& x) {
                                             return IndexExprs{x[0], x[0]};
                                           })},
                           tile),
               InvalidArgument);
}

TEST(Primitive, says_what_it_does) {
  EXPECT_EQ(to_string(Transform(Slice{{0, 64}, {16, 63}})), "slice [16, 63] at [0, 64]");
  EXPECT_EQ(to_string(Transform(Pad{{0, 0}, {0, 1}, 7})), "pad (0, 0, 0, 1) with code 7");
  EXPECT_EQ(to_string(Transform(ConvertTo{{&element("uint4"), 8}})), "convert to uint4 - 8");
}

// A phase of ldmatrix reads 16 bytes of eight rows. In a row-major tile of 128-byte rows all eight
// lie in the same banks; folded by the default rule every second one does. The paper calls the rule
// "not guaranteed optimal"; the order of ldmatrix below is.
TEST(PieceMap, leaves_two_of_the_eight_wavefronts_that_ldmatrix_takes_in_row_major_tiles) {
  const auto map = piece_map({16, 64}, {16, 16}, 64);
  for (std::int64_t column = 0; column < 64; column += 8) {
    for (std::int64_t row : {0, 8}) {
      std::vector<std::int64_t> stored, row_major;
      for (std::int64_t lane = 0; lane < 8; ++lane) {
        const auto at = map({row + lane, column});
        stored.push_back(2 * ((at[0] * 4 + at[1]) * 64 + at[2]));
        row_major.push_back(2 * ((row + lane) * 64 + column));
      }
      EXPECT_EQ(shared_wavefronts(row_major, 16), 8);
      EXPECT_EQ(shared_wavefronts(stored, 16), 2);
    }
  }
}

// The stored order of BitBLAS' last stage: 32 vectors of 8 halves in the order of ldmatrix (kind
// 2), then element (t, l) of those to lane and slot (kind 3). Together they are the B fragments of
// two m16n8k16, which is how the layout algebra has them.
TEST(PieceMap, the_order_of_ldmatrix_and_then_of_registers_is_the_fragment) {
  const auto kind2 = index_map({32, 8}, [](const IndexExprs& x) {  // (t, l) to (row, column)
    return IndexExprs{x[0] / 16 * 8 + x[0] % 8, x[0] % 16 / 8 * 8 + x[1]};
  });
  const auto kind3 = index_map({32, 8}, [](const IndexExprs& x) {  // (t, l) to (lane, slot)
    return IndexExprs{x[0] % 8 * 4 + x[1] / 2, x[0] / 8 * 2 + x[1] % 2};
  });
  // Vector t lies at 16 t bytes: phases of eight vectors, and no conflict.
  std::vector<std::int64_t> addresses;
  for (std::int64_t t = 0; t < 32; ++t) addresses.push_back(16 * t);
  EXPECT_EQ(shared_wavefronts(addresses, 16), shared_phases(addresses, 16));
  const auto found = kind3 * *inverse(kind2);
  const auto fragment = local({2, 1}) * tile_instruction(Scalar::f16)->b();
  EXPECT_EQ(found, *inverse(index_map(fragment)));
  for (std::int64_t lane = 0; lane < 32; ++lane) {
    for (std::int64_t slot = 0; slot < 8; ++slot) {
      const auto q = slot / 2, e = slot % 2;
      EXPECT_EQ((*inverse(found))({lane, slot}),
                (Shape{8 * (q / 2) + lane / 4, 8 * (q % 2) + 2 * (lane % 4) + e}));
    }
  }
}

// Granule (r, c) of a [16, 2] tile is number 2 r + c and goes to row e / 8, place e % 8.
TEST(PieceMap, of_a_ldmatrix_tile_folds_its_granules_to_the_hint) {
  const auto map = piece_map({16, 2}, {16, 2}, 8);
  EXPECT_EQ(map.shape(), (Shape{1, 4, 8}));
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t c = 0; c < 2; ++c) {
      const auto e = 2 * r + c;
      EXPECT_EQ(map({r, c}), (Shape{0, e / 8, e % 8}));
    }
  }
}

// At full size, in a stride that meets every kernel row, column and channel class.
TEST(ViewMap, of_the_eleven_convolutions_of_resnet18_is_the_window_that_each_output_reads) {
  const OperatorTypes types{ttype("float16"), ttype("float16"), ttype("float16")};
  for (const ConvolutionLayer& layer : kResNet18) {
    const auto conv = convolution(layer, 128);
    const auto form = matmul_form(convolution_nhwc(conv, types));
    const auto a = view_of_a(form), b = view_of_b(form);
    ASSERT_EQ(a.map.extents, (Shape{1, layer.i, layer.k}));
    EXPECT_EQ(b.map.shape(), form.expr.b.shape);
    EXPECT_TRUE(inverse(b.map).has_value());  // weights: a permutation, done when they are stored
    EXPECT_EQ(a.offset, (Shape{0, conv.padding, conv.padding, 0}));
    const auto ow = conv.out_width(), oh = conv.out_height(), c = conv.in_channels;
    for (std::int64_t i = 0; i < layer.i; i += 997) {
      for (std::int64_t k = 0; k < layer.k; k += 13) {
        // The input with its padding: row h * stride + y.
        ASSERT_EQ(a.map({0, i, k}),
                  (Shape{i / (oh * ow), i / ow % oh * conv.stride + k / c / conv.kernel,
                         i % ow * conv.stride + k / c % conv.kernel, k % c}));
      }
    }
  }
}

TEST(ViewMap, of_a_convolution_is_the_place_that_normalise_says) {
  const OperatorTypes types{ttype("float16"), ttype("float16"), ttype("float16")};
  for (const auto& conv : {Convolution{.batch = 2,
                          .in_channels = 3,
                          .out_channels = 4,
                          .height = 9,
                          .width = 9,
                          .kernel = 7,
                          .stride = 2,
                          .padding = 3},
                           Convolution{.batch = 2,
                           .in_channels = 3,
                           .out_channels = 4,
                           .height = 6,
                           .width = 6,
                           .kernel = 1,
                           .stride = 2}}) {
    const auto form = matmul_form(convolution_nhwc(conv, types));
    const auto a = view_of_a(form), b = view_of_b(form);
    EXPECT_EQ(b.map.shape(), form.expr.b.shape);
    EXPECT_TRUE(inverse(b.map).has_value());  // weights: a permutation, done when they are stored
    for (std::int64_t i = 0; i < form.i.extent; ++i) {
      for (std::int64_t k = 0; k < form.k.extent; ++k) {
        auto at = a.map({0, i, k});
        const auto& shape = form.expr.a.shape;
        std::int64_t place = 0;
        for (std::size_t d = 0; d < at.size() && place >= 0; ++d) {
          at[d] -= a.offset[d];
          place = at[d] < 0 || at[d] >= shape[d] ? -1 : place * shape[d] + at[d];
        }
        ASSERT_EQ(place, place_in_a(form, 0, i, k));
      }
    }
  }
}

}  // namespace
}  // namespace ladder
