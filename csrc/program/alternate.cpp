// SPDX-License-Identifier: Apache-2.0
#include "program/alternate.h"

#include "program/program.h"

namespace ladder {
namespace {

class Phases {
 public:
  explicit Phases(Half half) : half_(half) {}

  void walk(const std::vector<Statement>& body) {
    for (const Statement& statement : body) {
      if (const auto* loop = std::get_if<For>(&statement.op)) {
        for (std::int64_t trip = 0; trip < loop->trips; ++trip) {
          trips_.emplace_back(loop->variable, trip);
          walk(loop->body);
          trips_.pop_back();
        }
      } else if (const auto* barrier = std::get_if<Barrier>(&statement.op)) {
        if (barrier->half == Half::both || barrier->half == half_) phases.emplace_back();
      } else {
        phases.back().push_back({&statement, trips_});
      }
    }
  }

  std::vector<Phase> phases{1};

 private:
  const Half half_;
  std::vector<std::pair<VariableId, std::int64_t>> trips_;
};

}  // namespace

std::vector<Phase> phases_of(const Alternate& part, Half half) {
  Phases out(half);
  out.walk(part.body);
  return std::move(out.phases);
}

}  // namespace ladder
