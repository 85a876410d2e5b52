// SPDX-License-Identifier: Apache-2.0
//
// The text of the kernel that rounds tokens, run on this processor: to the bit what its header
// says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "codegen/rounding_kernels.h"
#include "codegen/target.h"
#include "guarded.h"
#include "instructions.h"
#include "layout/digits.h"
#include "machine.h"
#include "translate.h"

namespace ladder {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Tokens of all sizes, with zeros, numbers between two codes, and a token of each special kind.
std::vector<std::uint16_t> tokens_of(std::int64_t m, std::int64_t k, Scalar scalar) {
  std::mt19937 random(static_cast<unsigned>(m + k));
  std::normal_distribution<float> normal(0, 1);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(m * k));
  for (std::int64_t i = 0; i < m * k; ++i) {
    const std::int64_t token = i / k, column = i % k;
    double value = normal(random) * std::exp2(token % 7 - 3);
    if (column % 11 == 3) value = 0;
    if (token == 1) value = column == k - 1 ? -127 : static_cast<double>(column % 255) / 2 - 63;
    if (token == 2) value = 0;
    if (token == 3) value = column == 5 ? INFINITY : 1;
    if (token == 4) value = column == k - 2 ? NAN : -1;
    if (token == 5) value = column == 0 ? 0x1p-24 : 0;    // the least of float16
    if (token == 6) value = column == 7 ? -0x1p-101 : 0;  // below kLeastRounded
    if (token == 7) value = column == 9 ? 0x1p-100 : 0x1p-103;
    x[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(to_bits(scalar, value));
  }
  return x;
}

struct Rounded {
  Bytes codes;
  std::vector<float> scales;
};

/// Scales of callers: powers of two and others, with which some numbers are too large for codes.
float given_scale(std::int64_t token) { return token % 2 == 0 ? 0.0078125f : 0.0123f; }

/// Codes that come; NaN as well.
std::uint8_t code_of(std::int64_t i) { return static_cast<std::uint8_t>(i * 37 + i / 251); }
/// As waves of CDNA 3 read them, or as they are.
std::uint8_t read_as(Scalar to, std::uint8_t code) {
  return to == Scalar::e4m3fnuz ? static_cast<std::uint8_t>(fnuz_bytes(code)) : code;
}

std::int64_t place_of(std::int64_t column) {
  return column / 64 * 64 + digit_place(static_cast<int>(column % 64));
}

Rounded by_definition(const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t k,
                      Scalar from, Scalar to, TokenScales whose, std::int64_t each) {
  Rounded out{Bytes(static_cast<std::size_t>(m * k)), std::vector<float>(m)};
  const float top = largest_rounded(to);
  for (std::int64_t token = 0; token < m; ++token) {
    const auto value = [&](std::int64_t column) {
      return static_cast<float>(to_number(from, x[static_cast<std::size_t>(token * k + column)]));
    };
    float most = 0;
    bool finite = true;
    for (std::int64_t c = 0; c < k; ++c) {
      finite = finite && std::isfinite(value(c));
      most = std::max(most, std::fabs(value(c)));
    }
    const bool none = most < kLeastRounded;
    float inverse = none ? 0 : top / most;
    out.scales[token] = !finite ? std::numeric_limits<float>::quiet_NaN() : none ? 0 : most / top;
    if (whose == TokenScales::given) {
      const float scale = given_scale(each * token);
      bool number = true;
      for (std::int64_t c = 0; c < k; ++c) number = number && !std::isnan(value(c));
      inverse = 1.0f / scale;
      out.scales[token] = number ? scale : std::numeric_limits<float>::quiet_NaN();
    }
    for (std::int64_t c = 0; c < k; ++c) {
      float scaled = value(c) * inverse;
      if (to == Scalar::s8) scaled = std::min(std::max(scaled, -128.0f), 127.0f);
      out.codes[static_cast<std::size_t>(token * k + place_of(c))] = static_cast<std::uint8_t>(
          to == Scalar::s8 ? static_cast<int>(std::nearbyint(scaled))
                           : read_as(to, static_cast<std::uint8_t>(emulate::to_e4m3(scaled))));
    }
  }
  return out;
}

emulate::Guarded guarded(const void* from, std::size_t bytes) {
  Bytes content(bytes);
  if (from != nullptr) std::memcpy(content.data(), from, bytes);
  return emulate::Guarded(content);
}

/// The text of a target; kernels of AMD's have the words of HIP.
struct By {
  const char* target;
  int lanes;
  int capability;
};
constexpr By kHopper{"CUDA", 32, 90}, kTuring{"CUDA", 32, 75}, kWaves{"HIP", 64, 0},
    kFewLanes{"HIP", 32, 0};

Rounded of_codes(const Bytes& x, std::int64_t m, std::int64_t k, Scalar to, std::int64_t each) {
  Rounded out{Bytes(x.size()), std::vector<float>(m)};
  for (std::int64_t token = 0; token < m; ++token) {
    out.scales[token] = given_scale(each * token);
    for (std::int64_t c = 0; c < k; ++c) {
      out.codes[static_cast<std::size_t>(token * k + place_of(c))] =
          read_as(to, x[static_cast<std::size_t>(token * k + c)]);
    }
  }
  return out;
}

class RoundTokens {
 public:
  RoundTokens(Scalar from, Scalar to, const std::vector<std::int64_t>& columns, bool dependent,
              By by = kHopper, TokenScales whose = TokenScales::own)
      : from_(from), to_(to), whose_(whose), dependent_(dependent), by_(by) {
    const bool chains = by.capability >= 90;
    std::vector<emulate::Source> sources;
    for (const std::int64_t k : columns) {
      sources.push_back(
          {rounding_kernels(target_called(by.target))
               .round_tokens(from, to, whose, rounding_plan(k, by.lanes), {dependent, chains}),
           "round_tokens"});
    }
    const bool hip = std::string_view(by.target) == "HIP";
    kernels_ = emulate::load(sources, hip ? emulate::Language::hip : emulate::Language::cuda,
                             by.capability);
  }

  /// `each`: of given scales, whether tokens have one each.
  void expect_exact(std::size_t which, std::int64_t m, std::int64_t k, unsigned each = 1) const {
    const auto what = joined("[", m, ", ", k, "] ", name_of(from_), " to ", name_of(to_));
    const auto n = static_cast<std::size_t>(m * k);
    const bool are_codes = bytes_of(from_) == 1;
    const auto x = are_codes ? std::vector<std::uint16_t>() : tokens_of(m, k, from_);
    Bytes given_codes(are_codes ? n : 0);
    for (std::size_t i = 0; i < given_codes.size(); ++i) {
      given_codes[i] = code_of(static_cast<std::int64_t>(i));
    }
    std::vector<float> given_scales;
    for (std::int64_t t = 0; t < (each == 0 ? 1 : m); ++t) given_scales.push_back(given_scale(t));
    const auto in = are_codes ? guarded(given_codes.data(), n) : guarded(x.data(), 2 * n),
               out = guarded(nullptr, n),
               scales = guarded(nullptr, 4 * static_cast<std::size_t>(m)),
               given = guarded(given_scales.data(), 4 * given_scales.size());
    const RoundingPlan plan = rounding_plan(k, by_.lanes);
    auto tokens = static_cast<unsigned>(m), pieces = static_cast<unsigned>(k / kColumnsOfPiece),
         threads = plan.threads;
    void* parameters[] = {in.data(), out.data(), scales.data(), &tokens,
                          &pieces,   &threads,   &each,         given.data()};
    emulate::Launch launch{
        {static_cast<unsigned>(ceil_div(m, std::int64_t{plan.tokens})), 1}, {1, 1}, threads, 0, 1};
    launch.lanes = static_cast<unsigned>(by_.lanes);
    bool came = false;
    if (dependent_) launch.preceding = [&] { return came = true, std::string(); };
    EXPECT_EQ(emulate::run(launch, [&] { kernels_[which](parameters); }), "") << what;
    EXPECT_EQ(came, dependent_) << what;
    const Rounded wanted = are_codes ? of_codes(given_codes, m, k, to_, each)
                                     : by_definition(x, m, k, from_, to_, whose_, each);
    const auto* codes = static_cast<const std::uint8_t*>(out.data());
    for (std::int64_t token = 0; token < m; ++token) {
      float scale;
      std::memcpy(&scale, static_cast<const char*>(scales.data()) + 4 * token, 4);
      const float of_wanted = wanted.scales[static_cast<std::size_t>(token)];
      if (std::isnan(of_wanted)) {
        EXPECT_TRUE(std::isnan(scale)) << what << " token " << token;
        continue;
      }
      EXPECT_EQ(scale, of_wanted) << what << " token " << token;
      EXPECT_EQ(std::memcmp(codes + token * k, wanted.codes.data() + token * k,
                            static_cast<std::size_t>(k)),
                0)
          << what << " token " << token;
    }
  }

 private:
  Scalar from_, to_;
  TokenScales whose_;
  bool dependent_;
  By by_;
  std::vector<emulate::Kernel> kernels_;
};

// One piece; warps with idle lanes, with one and with two pieces a lane; blocks, their last warp
// with idle lanes.
const std::vector<std::int64_t> kColumns = {16, 112, 512, 1008, 1040, 3088};

TEST(EmulatedRounding, is_the_definition_to_the_bit) {
  for (const Scalar from : {Scalar::f16, Scalar::bf16}) {
    for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
      const RoundTokens kernels(from, to, kColumns, false);
      for (std::size_t i = 0; i < kColumns.size(); ++i) kernels.expect_exact(i, 9, kColumns[i]);
    }
  }
}

// Lanes find the largest number by exchanges.
TEST(EmulatedRounding, is_the_definition_on_turing) {
  const RoundTokens kernels(Scalar::f16, Scalar::s8, kColumns, false, kTuring);
  for (std::size_t i = 0; i < kColumns.size(); ++i) kernels.expect_exact(i, 9, kColumns[i]);
}

// The same lengths in lanes of a wave.
TEST(EmulatedRounding, is_the_definition_by_waves) {
  const std::vector<std::int64_t> columns = {16, 112, 1024, 2032, 2064, 3088};
  for (const Scalar from : {Scalar::f16, Scalar::bf16}) {
    for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
      const RoundTokens kernels(from, to, kColumns, false, kFewLanes);
      for (std::size_t i = 0; i < kColumns.size(); ++i) kernels.expect_exact(i, 9, kColumns[i]);
    }
  }
  for (const Scalar from : {Scalar::f16, Scalar::bf16}) {
    for (const Scalar to : {Scalar::s8, Scalar::e4m3, Scalar::e4m3fnuz}) {
      const RoundTokens kernels(from, to, columns, false, kWaves);
      for (std::size_t i = 0; i < columns.size(); ++i) kernels.expect_exact(i, 9, columns[i]);
    }
  }
}

TEST(EmulatedRounding, writes_nothing_that_no_device_of_a_target_reads) {
  EXPECT_THAT(
      [] {
        rounding_kernels(target_called("CUDA"))
            .round_tokens(Scalar::f16, Scalar::e4m3fnuz, TokenScales::own, rounding_plan(64, 32),
                          {false, false});
      },
      ::testing::ThrowsMessage<Unsupported>("no such device multiplies e4m3fnuz"));
}

TEST(EmulatedRounding, takes_given_scales_to_the_bit) {
  for (const Scalar from : {Scalar::f16, Scalar::bf16}) {
    for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
      const RoundTokens kernels(from, to, kColumns, false, kHopper, TokenScales::given);
      for (std::size_t i = 0; i < kColumns.size(); ++i) {
        kernels.expect_exact(i, 9, kColumns[i], i % 2);
      }
    }
    for (const Scalar to : {Scalar::s8, Scalar::e4m3, Scalar::e4m3fnuz}) {
      const RoundTokens waves(from, to, kColumns, false, kWaves, TokenScales::given);
      for (std::size_t i = 0; i < kColumns.size(); ++i) {
        waves.expect_exact(i, 9, kColumns[i], i % 2);
      }
    }
  }
  const std::vector<std::int64_t> columns = {65552};  // not held
  const RoundTokens kernels(Scalar::f16, Scalar::s8, columns, true, kHopper, TokenScales::given);
  kernels.expect_exact(0, 2, columns[0], 0);
}

TEST(EmulatedRounding, places_codes_that_come_as_they_are) {
  for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
    const RoundTokens kernels(to, to, kColumns, to == Scalar::s8, kHopper, TokenScales::given);
    for (std::size_t i = 0; i < kColumns.size(); ++i) {
      kernels.expect_exact(i, 9, kColumns[i], (i + 1) % 2);
    }
  }
  for (const auto& [from, to] : {std::pair{Scalar::s8, Scalar::s8},
                                 {Scalar::e4m3, Scalar::e4m3},
                                 {Scalar::e4m3, Scalar::e4m3fnuz}}) {
    const RoundTokens waves(from, to, kColumns, false, kWaves, TokenScales::given);
    for (std::size_t i = 0; i < kColumns.size(); ++i) waves.expect_exact(i, 9, kColumns[i], i % 2);
  }
}

TEST(EmulatedRounding, reads_long_tokens_twice) {
  const std::vector<std::int64_t> columns = {40960, 65552};  // three pieces a thread; not held
  for (const By by : {kHopper, kWaves, kFewLanes}) {
    const RoundTokens kernels(Scalar::bf16, Scalar::s8, columns, false, by);
    for (std::size_t i = 0; i < columns.size(); ++i) kernels.expect_exact(i, 2, columns[i]);
  }
}

TEST(EmulatedRounding, waits_for_the_kernel_in_front_of_a_dependent_launch) {
  const std::vector<std::int64_t> columns = {64, 2048};
  const RoundTokens kernels(Scalar::f16, Scalar::s8, columns, true);
  for (std::size_t i = 0; i < columns.size(); ++i) kernels.expect_exact(i, 5, columns[i]);
}

TEST(RoundingPlan, gives_every_piece_of_a_token_to_a_thread) {
  for (const int lanes : {32, 64}) {
    for (std::int64_t k = 16; k <= 1 << 17; k += 16) {
      const RoundingPlan plan = rounding_plan(k, lanes);
      const std::int64_t of_token = plan.of_warps ? lanes : plan.threads;
      ASSERT_LE(plan.threads, 1024u) << k;
      ASSERT_EQ(plan.threads % static_cast<unsigned>(lanes), 0u) << k;
      ASSERT_TRUE(!plan.held || plan.pieces * of_token * kColumnsOfPiece >= k) << k;
      ASSERT_EQ(plan.held, k <= 65536) << k;
    }
  }
  EXPECT_THROW(rounding_plan(8, 32), InvalidArgument);
}

}  // namespace
}  // namespace ladder
