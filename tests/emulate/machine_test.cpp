// SPDX-License-Identifier: Apache-2.0
//
// What the machine objects to, and what it does of copies, signals and warps by the PTX ISA.
#include "machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "instructions.h"

namespace ladder::emulate {
namespace {

constexpr unsigned kSeeds = 24;  // copies that end early, late and between; another warp behind

/// Two warps; 1024 bytes of shared memory, a signal at 512.
Launch launch(unsigned blocks, unsigned seed) { return {{blocks, 1}, {blocks, 1}, 64, 1024, seed}; }
std::uint32_t shared(unsigned offset) { return address_of(shared_memory() + offset); }
std::uint32_t signal() { return shared(512); }

void await(unsigned parity) {
  while (!signal_over(signal(), parity)) {
  }
}

TEST(Machine, objects_to_what_no_gpu_allows) {
  alignas(16) static unsigned char global[48] = {};
  const struct {
    const char* why;
    std::function<void()> kernel;
    unsigned blocks = 1;
  } wrongs[] = {
      {"deadlock: 1 at a barrier, 63 at a barrier of the cluster",
       [] { thread_index() == 0 ? block_barrier() : cluster_barrier(); }},
      {"deadlock: 2 at a warp's instruction, 62 ended",
       [] {
         if (thread_index() % 32 == 0) warp_max(0);
       }},
      {"lanes of a warp are at different instructions",
       [] { thread_index() % 2 == 0 ? warp_max(0) : warp_xor(0, 1); }},
      {"accessed 4 at 1024", [] { at(shared(1020) + 4, 4); }},
      {"accessed 16 at 8", [] { at(shared(8), 16); }},
      {"a write beside shared memory", [] { shared_memory()[1024] = 0; }},
      {"a write beside shared memory", [] { shared_memory()[-1] = 0; }},
      {"an address of another block", [] { signal_init(address_in(signal(), 1), 1); }, 2},
      {"an address of another block",
       [] { copy_async(address_in(shared(0), rank_in_cluster() ^ 1), global, 16, 16); }, 2},
      {"an access of 16 bytes at no multiple of them",
       [] { copy_async(shared(0), global + 8, 16, 16); }},
      {"an access of 16 bytes at no multiple of them",
       [] { copy_bulk(shared(0), global + 8, 16, signal(), 1); }},
      {"an asynchronous copy of 17 bytes", [] { copy_async(shared(0), global, 16, 17); }},
      {"no signal was made at ", [] { signal_arrive(signal(), 0); }},
      {"a signal has more arrivals than it was made for",
       [] {
         if (thread_index() > 0) return;
         signal_init(signal(), 1);
         signal_arrive(signal(), 16);
         signal_arrive(signal(), 0);
       }},
      {"at a signal",
       [] {
         if (thread_index() == 0) signal_init(signal(), 2);
         block_barrier();
         if (thread_index() == 0) signal_arrive(signal(), 0);
         await(0);
       }},
      {"block 1 has ended and is accessed",
       [] {
         if (rank_in_cluster() == 1) return;
         for (int i = 0; i < 4096; ++i) warp_max(0);
         at(address_in(shared(0), 1), 4);
       },
       2},
      {"block 0 has ended and is accessed", [] { copy_async(shared(0), global, 16, 16); }},
  };
  for (const auto& [why, kernel, blocks] : wrongs) {
    std::set<std::string> said;
    for (unsigned seed = 1; seed <= kSeeds; ++seed) said.insert(run(launch(blocks, seed), kernel));
    EXPECT_THAT(said, ::testing::Contains(::testing::HasSubstr(why)));
  }
}

TEST(Machine, ends_the_preceding_kernel_at_the_first_wait_or_before) {
  int early = 0, ended = 0, forgotten = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    auto dependent = launch(1, seed);
    bool there = false;
    dependent.preceding = [&] { return ++ended, there = true, std::string(); };
    const auto why = run(dependent, [&] {
      early += there;
      block_barrier();
      wait_for_preceding();
      EXPECT_TRUE(there);
    });
    EXPECT_EQ(why, "");
    forgotten += run(dependent, [] {}) == "nobody waited for the preceding kernel";
    dependent.preceding = [] { return std::string("y is written"); };
    EXPECT_EQ(run(dependent, wait_for_preceding), "y is written");
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 64 * static_cast<int>(kSeeds));
  EXPECT_GT(forgotten, 0);
  EXPECT_EQ(ended, static_cast<int>(2 * kSeeds) - forgotten);
}

// cp.async: zeros behind the bytes that are copied; of the groups all but the last `pending` have
// ended, and what no group has is not waited for.
TEST(Machine, has_copies_by_their_wait_and_maybe_before) {
  alignas(16) unsigned char global[16];
  std::iota(global, global + 16, 1);
  int before = 0, behind = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto why = run(launch(1, seed), [&] {
      if (thread_index() > 0) return;
      const auto* memory = shared_memory();
      copy_async(shared(0), global, 16, 5);
      copy_commit();
      copy_async(shared(16), global, 8, 8);
      copy_commit();
      copy_async(shared(32), global, 8, 8);
      before += memory[0] != 0xff;
      copy_wait(1);
      EXPECT_EQ(std::vector(memory, memory + 16),
                (std::vector<unsigned char>{1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
      copy_wait(0);
      EXPECT_EQ(std::memcmp(memory + 16, global, 8), 0);
      EXPECT_EQ(memory[24], 0xff);
      behind += memory[32] != 0xff;
      copy_commit();
      copy_wait(0);
      EXPECT_EQ(memory[32], 1);
    });
    EXPECT_EQ(why, "");
  }
  for (int seen : {before, behind}) {
    EXPECT_GT(seen, 0);
    EXPECT_LT(seen, static_cast<int>(kSeeds));
  }
}

// mbarrier: a phase ends when all have arrived and the bytes that they expect are there; copies of
// a thread arrive for it behind themselves, of the arrivals that the signal was made for (.noinc).
TEST(Machine, ends_a_phase_after_its_arrivals_copies_and_bytes) {
  alignas(16) static unsigned char global[32];
  std::iota(global, global + 32, 1);
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto why = run(launch(1, seed), [&] {
      const unsigned thread = thread_index();
      const auto* memory = shared_memory();
      if (thread == 0) signal_init(signal(), 66);  // of each thread, by hand, with bytes
      block_barrier();
      await(1);  // the phase before the first is over
      for (unsigned phase = 0; phase < 3; ++phase) {
        if (thread < 16) copy_async(shared(8 * thread), global, 8, 0);
        signal_arrive_after_copies(signal());
        if (thread == 63) signal_arrive(signal(), 0);
        if (thread == 32) copy_bulk(shared(256), global, 16, signal(), 1);
        if (thread == 33) signal_arrive(signal(), 32);
        if (thread == 34) copy_bulk(shared(272), global + 16, 16, signal(), 1);
        await(phase % 2);
        EXPECT_EQ(memory[8 * (thread % 16)], 0);
        EXPECT_EQ(memory[256 + thread % 32], thread % 32 + 1);
        block_barrier();
        shared_memory()[8 * (thread % 16)] = shared_memory()[256 + thread % 32] = 0xff;
        block_barrier();
      }
    });
    EXPECT_EQ(why, "");
  }
}

// Each block of a cluster sends its half to both, whose own signals hear of it.
TEST(Machine, sends_a_copy_of_the_engine_to_all_blocks_of_its_mask) {
  alignas(16) static unsigned char global[32];
  std::iota(global, global + 32, 1);
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const auto why = run(launch(2, seed), [&] {
      const unsigned rank = rank_in_cluster();
      if (thread_index() == 0) signal_init(signal(), 1);
      cluster_barrier();
      if (thread_index() == 0) signal_arrive(signal(), 32);
      if (thread_index() == 0) copy_bulk(shared(16 * rank), global + 16 * rank, 16, signal(), 3);
      await(0);
      EXPECT_EQ(std::memcmp(shared_memory(), global, 32), 0);
      EXPECT_EQ(std::memcmp(at(address_in(shared(0), rank), 16), global, 16), 0);
      cluster_barrier();
    });
    EXPECT_EQ(why, "");
  }
}

// Lane 4 g + t holds of the sums, of A and of B what the ISA's figures of m16n8k16 say: numbers
// whose product tells row, column and depth apart.
TEST(Machine, multiplies_the_fragments_of_the_instruction) {
  const auto half = [](float low, float high) { return to_f16(low) | to_f16(high) << 16; };
  const auto a_at = [](int row, int k) { return static_cast<float>(row + 16 * k); };
  const auto b_at = [](int k, int column) { return static_cast<float>(k == 2 * column + 1); };
  const auto why = run(launch(1, 1), [&] {
    const int g = static_cast<int>(thread_index()) % 32 / 4,
              t = static_cast<int>(thread_index()) % 4;
    const std::uint32_t a[] = {half(a_at(g, 2 * t), a_at(g, 2 * t + 1)),
                               half(a_at(g + 8, 2 * t), a_at(g + 8, 2 * t + 1)),
                               half(a_at(g, 2 * t + 8), a_at(g, 2 * t + 9)),
                               half(a_at(g + 8, 2 * t + 8), a_at(g + 8, 2 * t + 9))};
    const std::uint32_t b[] = {half(b_at(2 * t, g), b_at(2 * t + 1, g)),
                               half(b_at(2 * t + 8, g), b_at(2 * t + 9, g))};
    float d[] = {1000, 2000, 3000, 4000};
    multiply_f16(d, a, b);
    EXPECT_EQ(d[0], 1000 + a_at(g, 4 * t + 1));
    EXPECT_EQ(d[1], 2000 + a_at(g, 4 * t + 3));
    EXPECT_EQ(d[2], 3000 + a_at(g + 8, 4 * t + 1));
    EXPECT_EQ(d[3], 4000 + a_at(g + 8, 4 * t + 3));
  });
  EXPECT_EQ(why, "");
}

// m16n8k32: four columns of A and rows of B a register, where m16n8k16 has two.
TEST(Machine, multiplies_the_fragments_of_bytes) {
  const auto four = [](const auto& byte_at, int k) {
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= (byte_at(k + i) & 0xffu) << 8 * i;
    return out;
  };
  const auto why = run(launch(1, 1), [&] {
    const int g = static_cast<int>(thread_index()) % 32 / 4,
              t = static_cast<int>(thread_index()) % 4;
    const auto a_at = [](int row) {
      return [row](int k) { return static_cast<unsigned>(128 + row + 16 * (k / 4)); };
    };
    const auto b_at = [g](int k) { return k == 4 * g + 2 ? ~0u : 0u; };  // -1
    const std::uint32_t a[] = {four(a_at(g), 4 * t), four(a_at(g + 8), 4 * t),
                               four(a_at(g), 4 * t + 16), four(a_at(g + 8), 4 * t + 16)};
    const std::uint32_t b[] = {four(b_at, 4 * t), four(b_at, 4 * t + 16)};
    for (const bool is_signed : {false, true}) {
      int d[] = {0, 0, 0, 0};
      (is_signed ? multiply_s8 : multiply_u8)(d, a, b);
      for (int i = 0; i < 4; ++i) {
        const auto element = a_at(g + i / 2 * 8)(4 * (2 * t + i % 2) + 2) & 0xff;
        EXPECT_EQ(d[i],
                  -(is_signed ? static_cast<std::int8_t>(element) : static_cast<int>(element)));
      }
    }
  });
  EXPECT_EQ(why, "");
}

TEST(Machine, loads_the_matrices_whose_rows_the_lanes_name) {
  const auto why = run(launch(1, 1), [&] {
    const unsigned lane = thread_index() % 32;
    auto* words = reinterpret_cast<std::uint32_t*>(shared_memory());
    if (thread_index() < 32) std::iota(words + 4 * lane, words + 4 * lane + 4, 4 * lane);
    block_barrier();
    std::uint32_t out[4];
    std::uint32_t* to[] = {out, out + 1, out + 2, out + 3};
    load_matrices(to, 4, shared(16 * lane));
    for (unsigned matrix = 0; matrix < 4; ++matrix) EXPECT_EQ(out[matrix], 32 * matrix + lane);
  });
  EXPECT_EQ(why, "");
}

}  // namespace
}  // namespace ladder::emulate
