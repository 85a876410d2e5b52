// SPDX-License-Identifier: Apache-2.0
// A compiler that is too old, a compiler or a driver that fails: a line for the log, and the dense
// way for every call, never an exception from each of them. What a process has learnt of its
// compiler and device stays, so each test runs in a process of its own.
#include <cstdlib>

#include "base/error.h"
#include "fakes/fakes.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"
#include "runtime/session.h"
#include "store_fixture.h"

namespace ladder {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Failure : public StoreTest {
 protected:
  template <class Body>
  void alone(const Body& body) {
    const int status = in_child([&] {
      setenv("LADDER_CACHE", cache().c_str(), 1);
      gpus().toolchain.add_directory(LADDER_FAKES);
      fake_nvrtc.compiled = fake_driver.loaded = 0;
      body();
      return HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(status, 0);
  }
  static void old_compiler(std::initializer_list<int> architectures) {
    fake_nvrtc.major = 12, fake_nvrtc.minor = 2, fake_nvrtc.count = 0;
    for (const int each : architectures) fake_nvrtc.architectures[fake_nvrtc.count++] = each;
  }
  static Session& weight(std::int64_t n = 128) {
    return session(open_session(ttype("uint4,group=64,scale=float16"), n, 256));
  }
  static std::size_t lines(const std::string& text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(Failure, of_nothing_has_kernels_and_no_notice) {
  alone([] {
    const LinearKernel* kernel = weight().linear(0, Scalar::f16, 1, nullptr);
    ASSERT_NE(kernel, nullptr);
    weight().transform(0, Session::Transform::pack, nullptr);
    EXPECT_GT(fake_driver.loaded, 1);
    EXPECT_FALSE(notices_pending());
    EXPECT_EQ(take_notices(), "");
    EXPECT_EQ(device_failure(0), "");
    // Kept: another process compiles nothing.
    EXPECT_GT(fake_nvrtc.compiled, 1);
  });
  alone([] {
    weight().linear(0, Scalar::f16, 1, nullptr);
    EXPECT_EQ(fake_nvrtc.compiled, 0);
  });
}

TEST_F(Failure, to_know_the_device_names_both_versions) {
  alone([] {
    old_compiler({100, 120});
    EXPECT_THAT(no_kernels(ttype("uint4,group=64,scale=float16"), 128, 256, false, device("h200")),
                AllOf(HasSubstr("nvrtc 12.2"), HasSubstr("sm_100 to sm_120"), HasSubstr("sm_90a")));
    EXPECT_EQ(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    EXPECT_EQ(fake_nvrtc.compiled, 0);
  });
}

TEST_F(Failure, to_know_the_device_is_none_where_an_older_architecture_will_do) {
  alone([] {
    old_compiler({80, 86});
    ASSERT_NE(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    const auto binary = binary_of("a kernel", device("h200"));
    EXPECT_THAT(binary.bytes, testing::StartsWith("compute_86\n"));
    EXPECT_THAT(binary_of("a kernel", device("rtx4090")).bytes, testing::StartsWith("sm_86\n"));
    EXPECT_THAT(binary_of("a kernel", device("a100")).bytes, testing::StartsWith("sm_80\n"));
  });
}

TEST_F(Failure, of_the_compiler_is_said_once_and_goes_the_dense_way) {
  alone([] {
    fake_nvrtc.result = 6;
    EXPECT_EQ(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    EXPECT_TRUE(notices_pending());
    const std::string notices = take_notices();
    EXPECT_EQ(lines(notices), 1u);
    EXPECT_THAT(notices, AllOf(HasSubstr("nvrtc 13.0 for sm_90a"), HasSubstr("[128, 256]")));
    const int compiled = fake_nvrtc.compiled;
    EXPECT_LE(compiled, 2);
    for (int call = 0; call < 3; ++call) {
      EXPECT_EQ(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    }
    EXPECT_EQ(fake_nvrtc.compiled, compiled);
    EXPECT_FALSE(notices_pending());
  });
}

TEST_F(Failure, of_the_driver_is_said_once_and_goes_the_dense_way) {
  alone([] {
    fake_driver.load_result = 222;
    EXPECT_EQ(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    EXPECT_THAT(take_notices(), HasSubstr("cuModuleLoadData: CUDA_ERROR_FAKE"));
    const int loaded = fake_driver.loaded;
    EXPECT_EQ(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    EXPECT_EQ(fake_driver.loaded, loaded);
  });
}

// Without the kernels that pack and unpack, a device is not asked again for any weight.
TEST_F(Failure, of_what_every_weight_needs_is_the_device_s) {
  alone([] {
    fake_driver.load_result = 222;
    const auto fails = ThrowsMessage<ToolchainError>(HasSubstr("CUDA_ERROR_FAKE"));
    EXPECT_THAT([] { weight().transform(0, Session::Transform::pack, nullptr); }, fails);
    EXPECT_THAT(device_failure(0), HasSubstr("CUDA_ERROR_FAKE"));
    EXPECT_EQ(device_failure(1), "");
    const int loaded = fake_driver.loaded;
    EXPECT_THAT([] { weight(192).transform(0, Session::Transform::unpack, nullptr); }, fails);
    EXPECT_EQ(fake_driver.loaded, loaded);
    const std::string notices = take_notices();
    EXPECT_EQ(lines(notices), 1u);
    EXPECT_THAT(notices, HasSubstr("cuda:0 has no kernels, weights go through torch"));
  });
}

TEST_F(Failure, of_a_cache_that_others_can_write_is_said_and_costs_the_cache) {
  fs::create_directory(cache());
  chmod(cache().c_str(), 0777);
  alone([&] {
    ASSERT_NE(weight().linear(0, Scalar::f16, 1, nullptr), nullptr);
    EXPECT_THAT(take_notices(), AllOf(HasSubstr(cache()), HasSubstr("chmod go-w")));
  });
  EXPECT_TRUE(fs::is_empty(cache()));
}

}  // namespace
}  // namespace ladder
