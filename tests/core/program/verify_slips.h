// SPDX-License-Identifier: Apache-2.0
//
// To make one slip in a well-formed program, and to hear of it from the verifier. Internal to the
// tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "program/program.h"

namespace ladder::testing {

/// The first instruction of a kind, in loops and conditions too.
template <class T>
T* first(std::vector<Statement>& body) {
  for (Statement& s : body) {
    if (auto* found = std::get_if<T>(&s.op)) return found;
    T* found = nullptr;
    if (auto* loop = std::get_if<For>(&s.op)) found = first<T>(loop->body);
    if (auto* branch = std::get_if<If>(&s.op)) found = first<T>(branch->body);
    if (auto* part = std::get_if<Within>(&s.op)) found = first<T>(part->body);
    if (auto* part = std::get_if<Produce>(&s.op)) found = first<T>(part->body);
    if (found != nullptr) return found;
  }
  return nullptr;
}

inline std::string faults_of(const Program& program) {
  try {
    verify(program, device("h200").shared_per_block_bytes);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

/// `slip(program, instruction)` makes the verifier say `text`.
template <class T, class Slip>
void expect(const Program& program, const char* text, const Slip& slip) {
  ASSERT_EQ(faults_of(program), "");
  Program other = program;
  T* found = first<T>(other.body);
  ASSERT_NE(found, nullptr) << text;
  slip(other, *found);
  EXPECT_THAT(faults_of(other), ::testing::HasSubstr(text));
}

inline Buffer& buffer(Program& p, ViewId view) { return p.buffers[p.views[view].buffer]; }
inline Layout& layout(Program& p, RegisterId id) { return p.registers[id].layout; }

}  // namespace ladder::testing
