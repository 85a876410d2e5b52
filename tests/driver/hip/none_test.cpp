// SPDX-License-Identifier: Apache-2.0
// A machine whose driver has no device. What a process has learnt of its driver stays, so these run
// in processes of their own, of one that asks nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "fakes/fakes.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

template <class Body>
void alone(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(A_driver, that_fails_to_begin_is_refused_with_its_words) {
  alone([] {
    fake_driver.init_result = 3;
    EXPECT_FALSE(gpus().driver.present());
    EXPECT_THAT(
        [] { gpus().driver.properties(0); },
        testing::ThrowsMessage<Unsupported>("hipInit: hipErrorFake: the fake was told to fail"));
  });
}

TEST(A_driver, without_a_device_is_refused) {
  alone([] {
    fake_driver.devices = 0;
    EXPECT_FALSE(gpus().driver.present());
    EXPECT_THAT([] { gpus().driver.properties(0); },
                testing::ThrowsMessage<Unsupported>(testing::HasSubstr("hipErrorNoDevice")));
  });
}

}  // namespace
}  // namespace ladder
