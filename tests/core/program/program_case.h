// SPDX-License-Identifier: Apache-2.0
//
// Programs written by hand, run through the interpreter. Internal to the tests.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "program/builder.h"
#include "program/interpret.h"

namespace ladder::testing {

template <class T>
Argument given(const std::vector<T>& values) {
  return Argument::input(values.data(), values.size() * sizeof(T));
}

template <class T>
std::vector<T> values_of(const Argument& argument) {
  std::vector<T> out(argument.bytes.size() / sizeof(T));
  std::memcpy(out.data(), argument.bytes.data(), argument.bytes.size());
  return out;
}

constexpr std::int64_t kMaxShared = 227 << 10;

/// Verifies and interprets; why not, or "".
inline std::string objection_to(const Program& program, std::vector<Argument>& arguments,
                                std::int64_t tokens = 1) {
  try {
    verify(program, kMaxShared);
    interpret(program, arguments, tokens);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

inline std::vector<float> counting(std::int64_t count, float scale = 1) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(scale * static_cast<float>(i));
  return out;
}

constexpr int kThreads = 64, kRounds = 5, kStages = 2;

/// y = the sum over rounds of x [kRounds, 256], through a ring of two bulk copies.
inline Program bulk_ring() {
  Builder p("ring", {.x = 1, .y = 1, .threads = kThreads});
  const auto x = p.input("x", Scalar::f32, {kRounds, 256}),
             y = p.output("y", Scalar::f32, {1, 256});
  const auto all = p.shared("stages", Scalar::f32, {kStages, 256});
  const auto full = p.signal("full", kStages);
  const auto drained = p.signal("drained", kStages, kThreads);
  const Layout layout = spatial({1, kThreads}) * local({1, 4});
  const auto stage = [&](const Affine& round) {
    return p.view(all, {1, 256}, {}, times(remainder(round, kStages), 256));
  };
  const auto fetch = [&](const Affine& round) {
    p.expect(full, remainder(round, kStages), 1024);
    p.copy_bulk(stage(round), x, {round, 0}, full, remainder(round, kStages));
  };
  p.signal_init(full);
  p.signal_init(drained);
  p.barrier();
  fetch(0);
  fetch(1);
  const auto sum = p.fill(Scalar::f32, layout, 0, "sum");
  p.loop("k", kRounds, [&](const Affine& k) {
    const auto parity = remainder(divided(k, kStages), 2);
    p.await(full, remainder(k, kStages), parity);
    p.update(BinaryOp::add, sum, p.load(stage(k), {0, 0}, layout));
    p.arrive(drained, remainder(k, kStages));
    p.await(drained, remainder(k, kStages), parity);
    fetch(k + Affine(kStages));
  });
  p.store(sum, y, {0, 0});
  auto program = p.finish();
  auto& body = std::get<For>(program.body[program.body.size() - 2].op).body;
  for (auto& statement : body) {  // nothing to fetch for the last rounds
    const auto limit = [&](auto* i) {
      if (i != nullptr) i->guard = Affine::of(3) + Affine(kStages), i->below = kRounds;
    };
    limit(std::get_if<Expect>(&statement.op));
    limit(std::get_if<CopyBulk>(&statement.op));
  }
  return program;
}

/// y = the sum over trips of x [trips * 8, 32], copied tile by tile.
inline Program summed(std::int64_t trips, bool bulk) {
  Builder p("summed", {.x = 1, .y = 1, .threads = 64});
  const auto x = p.input("x", Scalar::f32, {trips * 8, 32}),
             y = p.output("y", Scalar::f32, {8, 32});
  const auto staged = p.shared("staged", Scalar::f32, {8, 32});
  const Layout layout = column_spatial({8, 8}) * local({1, 4});
  const auto full = p.signal("full", 1);
  if (bulk) p.signal_init(full);
  const auto sum = p.fill(Scalar::f32, layout, 0, "sum");
  p.loop("i", trips, [&](const Affine& i) {
    if (bulk) {
      p.expect(full, 0, 1024);
      p.copy_bulk(staged, x, {times(i, 8), 0}, full, 0);
      p.await(full, 0, remainder(i, 2));
    } else {
      p.copy_async(staged, x, {times(i, 8), 0});
      p.commit();
      p.wait(0);
    }
    p.update(BinaryOp::add, sum, p.load(staged, {0, 0}, layout));
  });
  p.store(sum, y, {0, 0});
  return p.finish();
}

/// Why `summed` is wrong, or "".
inline std::string summed_objection(const Program& program, std::int64_t trips) {
  std::vector<Argument> memory{given(counting(trips * 256)), Argument::output(1024)};
  if (auto why = objection_to(program, memory); !why.empty()) return why;
  const auto out = values_of<float>(memory[1]);
  for (int i = 0; i < 256; ++i) {
    if (out[i] != trips * i + 256 * (trips * (trips - 1) / 2)) return "wrong numbers";
  }
  return "";
}

}  // namespace ladder::testing
