// SPDX-License-Identifier: Apache-2.0
#include "program/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integer_layer.h"
#include "program/linear_case.h"
#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

const Device& h200() { return device("h200"); }

TEST(WithBarriers, gives_lowered_programs_the_barriers_that_were_placed_by_hand) {
  const auto cases = lowered_cases();
  EXPECT_GE(cases.size(), 40u);
  for (const auto& [problem, schedule] : cases) {
    const auto program = lower(decide(problem, h200()), schedule);
    const auto derived = with_barriers(program);
    if (!std::holds_alternative<activations::Staged>(schedule.activations)) {
      EXPECT_EQ(to_string(derived), to_string(program)) << to_string(schedule);
    } else {
      // One barrier a k-tile stands where copies could overwrite, also when there are too few
      // k-tiles.
      EXPECT_LE(count_barriers(derived), count_barriers(program)) << to_string(schedule);
    }
  }
}

TEST(WithBarriers, leaves_every_candidate_of_the_scheduler_as_it_is) {
  for (auto [n, k] : {std::pair{4096, 4096}, {28672, 8192}}) {
    const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 16, n, k);
    for (const auto& candidate : candidates(decide(problem, h200()))) {
      if (!candidate.dropped.empty()) continue;
      const auto program = lower(decide(problem, h200()), candidate.schedule);
      EXPECT_EQ(to_string(with_barriers(program)), to_string(program))
          << to_string(candidate.schedule);
    }
  }
}

/// A tile through shared memory, transposed, `trips` times; by one buffer or by two in turn.
Program transposes(std::int64_t trips, int buffers) {
  Builder p("transposes", {.x = 1, .y = 1, .threads = 64});
  const auto x = p.input("x", Scalar::f32, {trips * 16, 16});
  const auto y = p.output("y", Scalar::f32, {trips * 16, 16});
  const auto tile = p.shared("staged", Scalar::f32, {buffers, 16, 16}, {17 * 16, 17, 1});
  const auto turned = p.view(tile, {buffers, 16, 16}, {17 * 16, 1, 17});
  const Layout layout = spatial({1, 16, 4}) * local({1, 1, 4});
  const auto x3 = p.view(x, {trips, 16, 16}), y3 = p.view(y, {trips, 16, 16});
  p.loop("i", trips, [&](const Affine& i) {
    const auto part = remainder(i, buffers);
    p.barrier();
    p.store(p.load(x3, {i, 0, 0}, layout), tile, {part, 0, 0});
    p.store(p.load(turned, {part, 0, 0}, layout), y3, {i, 0, 0});
    p.barrier();
  });
  return p.finish();
}

std::string transposed(const Program& program, std::int64_t trips) {
  std::vector<Argument> memory{given(counting(trips * 256)), Argument::output(trips * 1024)};
  if (auto why = objection_to(program, memory); !why.empty()) return why;
  const auto out = values_of<float>(memory[1]);
  for (int i = 0; i < trips * 256; ++i) {
    if (out[i] != i / 256 * 256 + i % 16 * 16 + i / 16 % 16) return "wrong numbers";
  }
  return "";
}

TEST(WithBarriers, one_buffer_needs_two_in_a_loop_and_two_in_turn_need_one) {
  for (auto [trips, buffers, barriers] : {std::array{1, 1, 1}, {4, 1, 2}, {4, 2, 1}, {5, 3, 1}}) {
    const auto program = with_barriers(transposes(trips, buffers));
    EXPECT_EQ(transposed(program, trips), "") << to_string(program);
    EXPECT_EQ(count_barriers(program), barriers) << to_string(program);
  }
}

/// All programs made of `program` without its barriers and `count` new ones anywhere.
template <class Visit>
void place_barriers(Program& program, std::vector<Statement>& body, int count, std::size_t from,
                    const Visit& visit) {
  if (count == 0) {
    visit(program);
    return;
  }
  for (std::size_t at = from; at <= body.size(); ++at) {
    body.insert(body.begin() + at, Statement{Barrier{}});
    place_barriers(program, body, count - 1, at + 1, visit);
    body.erase(body.begin() + at);
  }
}

TEST(WithBarriers, fewer_are_wrong_wherever_they_are_put) {
  for (auto [trips, buffers] : {std::pair{4, 1}, {4, 2}}) {
    auto program = with_barriers(transposes(trips, buffers));
    const int count = count_barriers(program);
    auto& body = std::get<For>(program.body.back().op).body;
    std::erase_if(body, [](const auto& s) { return std::holds_alternative<Barrier>(s.op); });
    int tried = 0;
    place_barriers(program, body, count - 1, 0, [&, t = trips](const Program& other) {
      ++tried;
      EXPECT_THAT(transposed(other, t), HasSubstr("without a barrier")) << to_string(other);
    });
    EXPECT_GE(tried, 1);
  }
}

TEST(WithBarriers, a_thread_that_reads_its_own_writes_needs_none) {
  Builder p("own", {.x = 1, .y = 1, .threads = 32});
  const auto x = p.input("x", Scalar::f32, {32}), y = p.output("y", Scalar::f32, {32});
  const auto staged = p.shared("staged", Scalar::f32, {32});
  p.store(p.load(x, {0}, spatial({32})), staged, {0});
  p.barrier();
  p.store(p.load(staged, {0}, spatial({32})), y, {0});
  EXPECT_EQ(count_barriers(with_barriers(p.finish())), 0);
}

TEST(WithBarriers, what_a_block_wrote_to_global_memory_is_read_behind_one) {
  Builder p("through", {.x = 1, .y = 1, .threads = 32});
  const auto x = p.input("x", Scalar::f32, {32}), y = p.output("y", Scalar::f32, {32});
  const auto z = p.output("z", Scalar::f32, {32});
  p.store(p.load(x, {0}, spatial({32})), y, {0});
  p.store(p.load(y, {0}, spatial({32})), y, {0});  // each its own
  p.store(p.load(p.view(y, {32}, {1}), {0}, local({32}) * replicated(32, 1)), z, {0});
  auto program = p.finish();
  program.body.pop_back();  // 32 threads that store the same
  EXPECT_EQ(count_barriers(with_barriers(program)), 1);
  std::vector<Argument> memory{given(counting(32)), Argument::output(128), Argument::output(128)};
  EXPECT_THAT(objection_to(program, memory), HasSubstr("without a barrier"));
  EXPECT_EQ(objection_to(with_barriers(program), memory), "");
}

TEST(WithBarriers, threads_that_meet_in_one_instruction_are_refused) {
  Builder p("meet", {.x = 1, .y = 1, .threads = 32});
  p.store(p.fill(Scalar::f32, replicated(32, 1), 1), p.shared("staged", Scalar::f32, {1}), {0});
  EXPECT_THAT([&] { with_barriers(p.finish()); },
              ::testing::ThrowsMessage<InternalError>(HasSubstr(
                  "threads meet in one instruction, which no barrier orders, in: store staged")));
}

/// Barriers in the last loop.
int in_loop(const Program& program) {
  int count = 0;
  for (const auto& s : std::get<For>(program.body[program.body.size() - 2].op).body) {
    count += std::holds_alternative<Barrier>(s.op) ? 1 : 0;
  }
  return count;
}

TEST(WithPipeline, any_number_of_stages_computes_the_same_with_one_barrier_a_trip) {
  for (bool bulk : {false, true}) {
    for (int stages : {1, 2, 3, 4}) {
      for (int trips : {1, 2, 3, 7}) {
        const auto program = with_barriers(with_pipeline(summed(trips, bulk), stages));
        EXPECT_EQ(summed_objection(program, trips), "") << to_string(program);
        if (trips == 7) {
          EXPECT_EQ(in_loop(program), stages > 1 || bulk ? 1 : 2) << to_string(program);
        }
      }
    }
  }
}

TEST(WithPipeline, copies_are_ahead_of_the_trip_that_needs_them) {
  const auto text = to_string(with_barriers(with_pipeline(summed(7, false), 3)));
  EXPECT_THAT(text,
              HasSubstr("copy_async staged = x[0, 0]\n"
                        "commit\n"
                        "copy_async staged{256} = x[8, 0]\n"
                        "commit\n"
                        "for i in 0..6 rolled\n"
                        "  wait pending<=1\n"
                        "  barrier\n"
                        "  copy_async staged{(i + 2)%3*256} = x[(i + 2)*8, 0] while i + 2 < 7\n"
                        "  commit\n"
                        "  t0 = load staged{i%3*256}[0, 0]\n"));
}

TEST(WithPipeline, leaves_alone_what_it_cannot_move) {
  auto program = summed(4, false);
  auto& body = std::get<For>(program.body[1].op).body;
  const auto load = body[3];
  program.body.push_back(load);  // the last tile is read after the loop
  EXPECT_EQ(to_string(with_pipeline(program, 3)), to_string(program));
  const auto lowered =
      lower(decide(testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 512), h200()),
            DecodeSchedule{.tokens = 8,
                           .warps_n = 2,
                           .warps_k = 1,
                           .blocks_per_warp = 1,
                           .weights = weights::Ring{.k_tiles = 4, .stages = 2},
                           .reduction = Reduction::cluster,
                           .route = Route::in_place,
                           .ctas_per_sm = 2});
  EXPECT_EQ(to_string(with_pipeline(lowered, 3)), to_string(lowered));
  EXPECT_THROW(with_pipeline(program, 0), InvalidArgument);
}

}  // namespace
}  // namespace ladder
