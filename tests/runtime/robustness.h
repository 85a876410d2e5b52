// SPDX-License-Identifier: Apache-2.0
// Processes that die at any moment, many at once, disks that are full, folders that are read-only:
// no wrong kernel, nothing waited for for ever, no plan of another process lost.
#pragma once

#include <cstdlib>
#include <stdexcept>

#include "fakes/fakes.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/plan.h"
#include "runtime/session.h"
#include "store_fixture.h"

namespace ladder {

class Robustness : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    setenv("LADDER_CACHE", cache().c_str(), 1);
    gpus().toolchain.add_directory(LADDER_FAKES);
  }
  void TearDown() override {
    unsetenv("LADDER_CACHE");
    StoreTest::TearDown();
  }

  static std::string code_of(const KernelKey& key) { return key.flags + "\n" + key.source; }
  static MachineCode compile(const KernelKey& key) {
    return gpus().toolchain.compile(key.source, key.flags);
  }

  /// Of the user's cache: entries that are found, and each as it was compiled.
  std::size_t whole_entries() const {
    const KernelStore there(cache());
    std::size_t count = 0;
    std::error_code none;
    for (const auto& each : fs::directory_iterator(fs::path(cache()) / "kernels", none)) {
      if (each.path().filename().string().size() != 32) continue;
      const KernelKey key{contents(each.path() / "source.cu"), "nvrtc 13.0", "sm_90a"};
      const auto found = there.find(key);
      if (!found) ADD_FAILURE() << each.path() << " is an entry and not found";
      if (found) {
        EXPECT_EQ(found->bytes, code_of(key));
      }
      ++count;
    }
    return count;
  }

  static Session& weight(std::int64_t n) {
    return session(open_session(ttype("uint4,group=64,scale=float16"), n, 256));
  }
  /// As ladder/cuda/tune.py: compiles candidates in other processes, takes each, keeps the best.
  static std::string tune(std::int64_t n) {
    Session& session = weight(n);
    const auto schedules = session.schedules(0, Scalar::f16, 1, 2);
    if (schedules.empty()) throw std::runtime_error("no schedule");
    session.linear(0, Scalar::f16, 1, nullptr);
    session.keep(0, Scalar::f16, 1, schedules.back(), 2);
    return schedules.back();
  }
  static std::string stored(const KernelStore& store, std::int64_t n) {
    const Problem problem =
        expression(ttype("uint4,group=64,scale=float16"), n, 256, false, Scalar::f16, 1);
    return store.plan(plan_key(problem, device_row(0), false)).value_or("");
  }
};

}  // namespace ladder
