// SPDX-License-Identifier: Apache-2.0
//
// To make a slip in a good program, and to hear of it. Internal to the tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "program/linear_case.h"

namespace ladder::testing {

/// Every statement of a program, in loops and conditions too.
inline void each_statement(std::vector<Statement>& body,
                           const std::function<void(Statement&)>& visit) {
  for (Statement& s : body) {
    visit(s);
    if (auto* loop = std::get_if<For>(&s.op)) each_statement(loop->body, visit);
    if (auto* branch = std::get_if<If>(&s.op)) each_statement(branch->body, visit);
    if (auto* part = std::get_if<Within>(&s.op)) each_statement(part->body, visit);
    if (auto* part = std::get_if<Produce>(&s.op)) each_statement(part->body, visit);
  }
}

/// Calls change(op) on every instruction of type Op.
template <class Op, class Change>
void for_each_op(std::vector<Statement>& body, const Change& change) {
  each_statement(body, [&](Statement& s) {
    if (auto* op = std::get_if<Op>(&s.op)) change(*op);
  });
}

/// What the verifier, the interpreter or the numbers, which are exact, say against `program`, or
/// "".
inline std::string objection_to(const Program& program, const Schedule& schedule,
                                const LinearCase& data) {
  try {
    verify(program, device("h200").shared_per_block_bytes);
    return data.run(program, schedule) == data.exact() ? "" : "wrong numbers";
  } catch (const InternalError& error) {
    return error.what();
  }
}

}  // namespace ladder::testing
