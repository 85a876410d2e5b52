// SPDX-License-Identifier: Apache-2.0
//
// Samples of the compile matrix leave no cell out for good, and no kind of cell out of any run.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "matrix.h"

namespace ladder::testing {
namespace {

std::size_t largest_stride() { return std::ranges::max(strata(), {}, &Stratum::stride).stride; }

TEST(Sample, has_every_cell_for_one_seed_in_as_many_as_its_stride) {
  std::map<const Cell*, std::set<std::size_t>> seeds;
  const std::size_t first = 1000, last = first + 2 * largest_stride();
  for (auto seed = first; seed < last; ++seed) {
    for (const Cell* cell : sample(seed)) seeds[cell].insert(seed);
  }
  for (const auto& [stride, cells] : strata()) {
    for (const Cell& cell : cells) {
      const auto& found = seeds[&cell];
      ASSERT_GE(found.size(), 2u) << ::testing::PrintToString(cell);
      EXPECT_LT(*found.begin(), first + stride);
      EXPECT_EQ(*std::next(found.begin()) - *found.begin(), stride);
    }
  }
}

/// What `kind` says of cells, of the whole matrix and then of each seed's sample.
template <class Kind>
void expect_every(const Kind& kind) {
  std::set<std::string> all;
  for (const auto& stratum : strata()) {
    for (const Cell& cell : stratum.cells) all.insert(kind(cell));
  }
  EXPECT_GT(all.size(), 20u);
  for (std::size_t seed = 0; seed < largest_stride(); ++seed) {
    std::set<std::string> sampled;
    for (const Cell* cell : sample(seed)) sampled.insert(kind(*cell));
    EXPECT_EQ(sampled, all) << "seed " << seed;
  }
}

TEST(Sample, has_every_activation_and_number_of_tokens_on_every_architecture) {
  expect_every([](const Cell& cell) {
    std::string out(cell.device->architecture);
    out += ' ' + std::string(name_of(cell.problem.activation()));
    for (const auto m : cell.tokens) out += ' ' + std::to_string(m);
    return out;
  });
}

TEST(Sample, has_every_type) {
  expect_every([](const Cell& cell) {
    Problem type = cell.problem;
    type.n = type.k = 4096;
    type.set_activation(Scalar::f16);
    type.set_bias(false), type.permuted_columns = false;
    return to_string(type);
  });
}

TEST(Sample, is_a_tenth_of_the_matrix) {
  std::size_t all = 0;
  for (const auto& [_, cells] : strata()) all += cells.size();
  for (std::size_t seed = 0; seed < largest_stride(); ++seed) {
    EXPECT_LT(sample(seed).size(), all / 10) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ladder::testing
