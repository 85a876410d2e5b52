// SPDX-License-Identifier: Apache-2.0
//
// Kernels of activations for AMD's devices, by clang to assembly: no spills and no scratch, no
// access whose memory the compiler did not find out, arguments as the host passes them, so that no
// kernel asks for hidden ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/hip/code_object.h"
#include "codegen/hip_clang.h"
#include "codegen/target.h"

namespace ladder {
namespace {

/// Architectures whose waves have so many lanes.
struct Machine {
  int lanes;
  const char* architecture;
};
constexpr Machine kMachines[] = {{64, "gfx90a"}, {64, "gfx942"}, {32, "gfx1100"}, {32, "gfx1201"}};
constexpr int kLanes[] = {32, 64};
constexpr Scalar kHalves[] = {Scalar::f16, Scalar::bf16};

/// For waves of `lanes`. `pointers` and `numbers` are what the host passes.
void expect_clean(int lanes, const std::string& source, const std::string& what, unsigned threads,
                  int pointers, int numbers) {
  for (const auto& [lanes_there, architecture] : kMachines) {
    if (lanes_there != lanes) continue;
    SCOPED_TRACE(joined(what, " for ", architecture));
    const hip::Clang clang = *hip::found_clang(architecture);
    const auto assembly = hip::assembly_of(clang, source, architecture);
    const auto kernels = hip::kernels_of(hip::assembled(clang, assembly, architecture));
    ASSERT_EQ(kernels.size(), 1);
    const hip::KernelResources& kernel = kernels.front();
    EXPECT_EQ(kernel.vgpr_spills + kernel.sgpr_spills + kernel.scratch_bytes, 0);
    EXPECT_EQ(kernel.argument_bytes, 8 * pointers + 4 * numbers);
    EXPECT_EQ(assembly.find("\tflat_"), std::string::npos);
    EXPECT_EQ(assembly.find("\tscratch_"), std::string::npos);
    EXPECT_EQ(assembly.find("s_swappc"), std::string::npos) << "a call of a library";
    EXPECT_NE(assembly.find(joined(".max_flat_workgroup_size: ", threads)), std::string::npos);
  }
}

class HipActivationKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const Machine& each : kMachines) LADDER_SKIP_WITHOUT_CLANG(each.architecture);
  }
  const RoutingKernels& routing_ = routing_kernels(target_called("HIP"));
  const RoundingKernels& rounding_ = rounding_kernels(target_called("HIP"));
};

TEST_F(HipActivationKernels, that_route_compile_without_spills) {
  for (const int lanes : kLanes) {
    for (const bool whole : {false, true}) {
      const RowKind kind{whole, false};
      expect_clean(lanes, routing_.route(kind), "route", kRoutingThreads, 5, 7);
      expect_clean(lanes, routing_.route({whole, false, true}), "route", kRoutingThreads, 7, 7);
      for (const char* name : {"gelu", "gelu_pytorch_tanh", "linear", "mish", "quick_gelu", "relu",
                               "relu2", "sigmoid", "silu", "swigluoai", "tanh"}) {
        const Scalar scalar = whole ? Scalar::f16 : Scalar::bf16;
        expect_clean(lanes, routing_.gated(scalar, *gated_called(name), kind), name,
                     kRoutingThreads, 2, 4);
      }
      for (const Scalar scalar : kHalves) {
        for (const Scalar weight : {scalar, Scalar::f32}) {
          expect_clean(lanes, routing_.combine(scalar, weight, kind), "combine", kRoutingThreads, 4,
                       3);
        }
      }
    }
  }
}

// Of a wave, of a workgroup with one, two and four pieces a thread, and read twice.
TEST_F(HipActivationKernels, that_round_compile_without_spills) {
  for (const int lanes : kLanes) {
    for (const std::int64_t k : {16, 2048, 8192, 65536, 131072}) {
      for (const Scalar from : kHalves) {
        const RoundingPlan plan = rounding_plan(k, lanes);
        expect_clean(
            lanes, rounding_.round_tokens(from, Scalar::s8, TokenScales::own, plan, {false, false}),
            joined(name_of(from), " of ", k), plan.threads, 3, 3);
      }
      const RoundingPlan plan = rounding_plan(k, lanes);
      for (const Scalar from : {Scalar::f16, Scalar::bf16, Scalar::s8}) {
        expect_clean(
            lanes,
            rounding_.round_tokens(from, Scalar::s8, TokenScales::given, plan, {false, false}),
            joined(name_of(from), " of ", k, " with given scales"), plan.threads, 4, 4);
      }
    }
  }
}

// By plain arithmetic, so that both architectures compile both formats.
TEST_F(HipActivationKernels, that_round_to_float8_compile_without_spills) {
  for (const int lanes : kLanes) {
    for (const std::int64_t k : {16, 8192, 131072}) {
      const RoundingPlan plan = rounding_plan(k, lanes);
      for (const Scalar to : {Scalar::e4m3, Scalar::e4m3fnuz}) {
        for (const Scalar from : kHalves) {
          expect_clean(lanes,
                       rounding_.round_tokens(from, to, TokenScales::own, plan, {false, false}),
                       joined(name_of(from), " of ", k, " to ", name_of(to)), plan.threads, 3, 3);
        }
        for (const Scalar from : {Scalar::f16, Scalar::e4m3}) {
          expect_clean(lanes,
                       rounding_.round_tokens(from, to, TokenScales::given, plan, {false, false}),
                       joined(name_of(from), " of ", k, " to ", name_of(to), " with given scales"),
                       plan.threads, 4, 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ladder
