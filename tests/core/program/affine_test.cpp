// SPDX-License-Identifier: Apache-2.0
#include "program/affine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"

namespace ladder {
namespace {

constexpr VariableId kIndex = 3;

std::int64_t at(const Affine& affine, std::int64_t value) {
  auto sum = affine.constant;
  for (const auto& term : affine.terms) sum += term.at(value);
  return sum;
}

/// What `make` gives; nothing where it refuses.
template <class Make>
std::optional<Affine> unless_refused(const Make& make) {
  try {
    return make();
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

// Quotients and remainders of quotients and remainders, as a user's program may nest them.
TEST(Affine, quotients_and_remainders_are_right_or_refused) {
  int right = 0;
  for (std::int64_t factor : {0, 1, 2, 3, 6}) {
    for (std::int64_t constant : {0, 1, 2, 5, 12}) {
      const auto first = Affine::of(kIndex, factor) + Affine(constant);
      for (std::int64_t a : {1, 2, 3, 4, 12}) {
        for (std::int64_t more : {0, 1, 4}) {
          for (std::int64_t b : {1, 2, 3, 4, 6}) {
            for (int kinds = 0; kinds < 4; ++kinds) {
              const bool quotient[] = {kinds % 2 == 0, kinds / 2 == 0};
              const auto result = unless_refused([&] {
                const auto inner = (quotient[0] ? divided(first, a) : remainder(first, a)) + more;
                return quotient[1] ? divided(inner, b) : remainder(inner, b);
              });
              if (!result) continue;
              ++right;
              for (std::int64_t v = 0; v < 40; ++v) {
                const auto value = factor * v + constant;
                const auto inner = (quotient[0] ? value / a : value % a) + more;
                ASSERT_EQ(at(*result, v), quotient[1] ? inner / b : inner % b)
                    << "(" << factor << " v + " << constant << (quotient[0] ? ") / " : ") % ") << a
                    << ", + " << more << (quotient[1] ? ", / " : ", % ") << b << " at " << v;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(right, 2000);
}

// As of a block and a column within it: all terms but one are multiples of the other number.
TEST(Affine, terms_that_are_multiples_leave_quotients_and_remainders_to_the_others) {
  constexpr VariableId kOther = 4, kThird = 5;
  int right = 0;
  for (std::int64_t by : {1, 2, 4, 12}) {
    for (std::int64_t factor : {0, 1, 2, 3, 4, 12, 24}) {
      for (std::int64_t constant : {0, 1, 5, 12}) {
        for (const bool wraps : {false, true}) {
          const auto of_other =
              wraps ? times(remainder(Affine::of(kOther), 3), 2 * by) : Affine::of(kOther, 2 * by);
          const auto one = Affine::of(kIndex, factor) + Affine(constant);
          const auto sum = of_other + one + Affine::of(kThird, by);
          const auto alone = unless_refused([&] { return divided(one, by); });
          const auto quotient = unless_refused([&] { return divided(sum, by); });
          const auto rest = unless_refused([&] { return remainder(sum, by); });
          EXPECT_EQ(quotient.has_value(), alone.has_value()) << factor << " by " << by;
          for (std::int64_t v = 0; v < 30; ++v) {
            for (std::int64_t other = 0; other < 5; ++other) {
              const auto at_all = [&](const Affine& affine) {
                auto total = affine.constant;
                for (const auto& term : affine.terms) {
                  total += term.at(term.variable == kIndex ? v : other);
                }
                return total;
              };
              if (quotient) {
                ASSERT_EQ(at_all(*quotient), at_all(sum) / by) << factor << ' ' << by;
              }
              if (rest) {
                ASSERT_EQ(at_all(*rest), at_all(sum) % by) << factor << ' ' << by;
              }
              right += quotient.has_value() + rest.has_value();
            }
          }
        }
      }
    }
  }
  EXPECT_GE(right, 30000);
}

TEST(Affine, a_remainder_of_multiples_alone_is_that_of_the_number) {
  const auto sum = Affine::of(kIndex, 8) + Affine::of(kSplit, 12) + Affine(7);
  EXPECT_EQ(remainder(sum, 4), Affine(3));
  EXPECT_EQ(remainder(Affine::of(kIndex, 8) + Affine(7), 4), Affine(3));
  EXPECT_EQ(remainder(Affine::of(kIndex, 2) + Affine(1), 1), Affine(0));
  EXPECT_EQ(divided(sum, 4), Affine::of(kIndex, 2) + Affine::of(kSplit, 3) + Affine(1));
}

TEST(Affine, a_quotient_of_a_remainder_is_taken_where_it_divides_the_modulus) {
  const auto turns = divided(remainder(Affine::of(kIndex), 12), 4);
  for (std::int64_t v = 0; v < 30; ++v) EXPECT_EQ(at(turns, v), v % 12 / 4);
}

TEST(Affine, what_has_no_quotient_or_remainder_is_refused_with_both_numbers) {
  using ::testing::ThrowsMessage;
  const auto i = Affine::of(kIndex);
  EXPECT_THAT([&] { divided(remainder(i, 4), 3); },
              ThrowsMessage<InvalidArgument>("no quotient by 3 of an index modulo 4 plus 0"));
  EXPECT_THAT([&] { divided(remainder(i, 4) + Affine(1), 2); },
              ThrowsMessage<InvalidArgument>("no quotient by 2 of an index modulo 4 plus 1"));
  EXPECT_THAT([&] { remainder(times(i, 3), 4); },
              ThrowsMessage<InvalidArgument>("no remainder by 4 of steps of 3"));
  EXPECT_THAT([&] { divided(i, 0); },
              ThrowsMessage<InvalidArgument>("a quotient by 0, which is not positive"));
  EXPECT_THAT(
      [&] { remainder(i + Affine(-1), 4); },
      ThrowsMessage<InvalidArgument>("a remainder of an index from -1 on, which is negative"));
  EXPECT_THAT([&] { remainder(times(i, -2), 4); },
              ThrowsMessage<InvalidArgument>("a remainder of steps of -2"));
  EXPECT_THAT([&] { divided(i + Affine::of(kSplit), 2); },
              ThrowsMessage<InvalidArgument>("a quotient of a sum of 2 variables"));
  EXPECT_THAT([&] { divided(i + Affine::of(kSplit) + Affine::of(kTile, 2), 2); },
              ThrowsMessage<InvalidArgument>("a quotient of a sum of 2 variables"));
  EXPECT_THAT([&] { remainder(times(i, 3) + Affine::of(kSplit, 4), 4); },
              ThrowsMessage<InvalidArgument>("no remainder by 4 of steps of 3"));
  EXPECT_THAT([&] { divided(i + Affine::of(kSplit), 0); },
              ThrowsMessage<InvalidArgument>("a quotient by 0, which is not positive"));
}

TEST(Affine, exact_quotients_are_of_every_term_or_refused) {
  using ::testing::ThrowsMessage;
  const auto sum = times(remainder(Affine::of(kIndex), 3), 16) + Affine::of(kSplit, 24) + Affine(8);
  const auto eighth =
      times(remainder(Affine::of(kIndex), 3), 2) + Affine::of(kSplit, 3) + Affine(1);
  EXPECT_EQ(exact_quotient(sum, 8), eighth);
  EXPECT_THAT([&] { exact_quotient(sum, 16); },
              ThrowsMessage<InvalidArgument>("no exact quotient by 16"));
}

TEST(Affine, has_the_numbers_of_a_variable_that_is_fixed) {
  const Affine of = Affine::of(kIndex, 3) + remainder(Affine::of(kIndex) + Affine(1), 4) +
                    Affine::of(kSplit, 7) + Affine(2);
  for (std::int64_t value = 0; value < 9; ++value) {
    const auto here = fixed(of, kIndex, value);
    EXPECT_EQ(here, Affine::of(kSplit, 7) + Affine(3 * value + (value + 1) % 4 + 2));
  }
  EXPECT_EQ(fixed(of, kTile, 5), of);
}

}  // namespace
}  // namespace ladder
