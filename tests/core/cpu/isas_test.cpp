// SPDX-License-Identifier: Apache-2.0
//
// Which instruction sets the tests of this folder ran: a set that the machine lacks is not tested,
// and the last lines say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/error.h"
#include "cpu/isa.h"
#include "cpu/values.h"

namespace ladder::cpu {
namespace {

bool runs(Isa isa) {
  const auto isas = available_isas();
  return std::ranges::find(isas, isa) != isas.end();
}

/// Of several shards the first speaks.
class Report : public ::testing::Environment {
  void TearDown() override {
    const char* const shard = std::getenv("GTEST_SHARD_INDEX");
    if (shard != nullptr && std::string(shard) != "0") return;
    std::string tested, skipped;
    for (const Isa isa : built_isas())
      (runs(isa) ? tested : skipped) += " " + std::string(name(isa));
    std::cout << "cpu_tests: instruction sets tested:" << tested << "\n";
    if (!skipped.empty())
      std::cout << "cpu_tests: SKIPPED, because this machine lacks them:" << skipped << "\n";
  }
};

const ::testing::Environment* const report = ::testing::AddGlobalTestEnvironment(new Report);

TEST(CpuIsas, begin_with_plain_cpp_and_have_names_of_their_own) {
  const auto isas = built_isas();
  ASSERT_EQ(isas.front(), Isa::generic);
  for (std::size_t i = 0; i < isas.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(name(isas[i]), name(isas[j]));
  EXPECT_EQ(available_isas().front(), Isa::generic);
}

TEST(CpuIsas, have_kernels_where_the_machine_can_run_them_and_are_refused_by_name_elsewhere) {
  for (const Isa isa : built_isas()) {
    if (runs(isa)) {
      EXPECT_GT(kernels_of(isa).block, 0);
      EXPECT_NE(quantize_kernels_of(isa).encode, nullptr);
      continue;
    }
    try {
      kernels_of(isa);
      FAIL() << name(isa) << " was not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "this machine cannot run the " + std::string(name(isa)) + " kernels");
    }
    EXPECT_THROW(quantize_kernels_of(isa), InvalidArgument);
  }
}

}  // namespace
}  // namespace ladder::cpu
