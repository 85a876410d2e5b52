// SPDX-License-Identifier: Apache-2.0
//
// Products of many rows by stacks of weights: kernels of one launch for all items
// (program/items.h), which are of a router's table, of a batch, or the windows of a convolution,
// whose stack is one weight. Weights of a stack are of one type and shape, each in an image of its
// own as its Session makes it; images lie side by side.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/session.h"

namespace ladder {

/// Most rows of an item: what kernels are compiled for.
constexpr std::array<std::int64_t, 7> kItemRows{8, 16, 32, 64, 96, 128, 256};

/// Which rows of x are multiplied by which weight of a stack.
enum class ItemsOf {
  experts,  ///< what a table says
  batch,    ///< [weights, rows, k]: as many by each
  windows,  ///< of images, by the only weight
};

/// Items that a table needs at most, in whole groups (Items::together).
std::int64_t most_items(std::int64_t rows, std::int64_t experts, std::int64_t of_item);

class ExpertProducts {
 public:
  explicit ExpertProducts(Session& session) : session_(session) {}

  struct Question {
    int ordinal;
    Scalar activation;
    std::int64_t experts, of_item;  ///< of the stack; most rows of an item, one of kItemRows
    std::int64_t rows;              ///< of all items; of a batch those of each weight
    ItemsOf items = ItemsOf::experts;
    std::optional<Windows> windows = std::nullopt;
    bool residual = false;  ///< of a batch or of windows: y has one added

    bool operator<(const Question& other) const;
  };

  /// Of the plan that a store has, else the scheduler's first choice; null where there is none.
  /// Compiled on first use: throws Unsupported when `stream` captures a
  /// graph then.
  const LinearKernel* kernel(const Question& question, void* stream);
  /// The same for a call that the driver refused: the scheduler's next choice from now on.
  const LinearKernel* instead_of(const LinearKernel& kernel, const Question& question,
                                 void* stream);
  /// From now on that of `schedule`; with `measured` for good, as the plan, the fastest of so many.
  /// Throws Unsupported when it is none of the scheduler's, spills, or fits nowhere on the device.
  void use(const Question& question, const std::string& schedule, std::int64_t measured);
  /// Whether a store has a plan that is the fastest of `measured` or more.
  bool has_plan(const Question& question, std::int64_t measured) const;
  /// Of the scheduler's first choice; infinite where there is none. Remembered, as the choices are:
  /// all schedules of a question take 10 to 50 ms.
  double expected_seconds(const Question& question) const;
  /// The scheduler's first choices, at most `count`, compiled ahead as far as a store can hold
  /// them.
  std::vector<std::string> schedules(const Question& question, std::size_t count) const;
  /// Text of the first kernel that kernel() would try and no store knows to be rejected; "" where
  /// there is none.
  std::string first_source(const Question& question) const;

 private:
  /// The scheduler's first choices, which are tried in turn, and what the first is expected to
  /// take.
  struct Choices {
    std::vector<Schedule> schedules;
    double seconds;
  };
  const Choices& choices(const Question& question) const;
  /// The plan that a store has, then the scheduler's choices.
  std::vector<Schedule> to_try(const Question& question, const Decisions& decisions) const;
  const LinearKernel* first_kernel(const Question& question);
  Decisions decided(const Question& question) const;
  Problem equal_items(const Question& question) const;
  void refuse_in_capture(const Question& question, void* stream) const;

  Session& session_;
  std::shared_mutex mutex_;  // of kernels_: calls only look
  std::mutex compiling_;
  std::map<Question, const LinearKernel*> kernels_;
  std::vector<std::unique_ptr<const LinearKernel>> owned_;
  std::map<Question, std::set<std::string>> refused_;  // schedules, by the driver
  mutable std::mutex choosing_;  // of the map alone: several may be chosen at a time
  mutable std::map<Question, Choices> chosen_;
};

/// Most rows of an item, those first whose products by both stacks are expected to take least.
std::vector<std::int64_t> rows_of_items(const ExpertProducts& first, const ExpertProducts& second,
                                        ExpertProducts::Question question);

/// Has the stores hold the kernels of both products for each number of rows, compiled several at a
/// time, so that kernel() has only to load them. `question` says the rest.
void compile_ahead(const ExpertProducts& first, const ExpertProducts& second,
                   ExpertProducts::Question question, std::span<const std::int64_t> rows);

/// The same for one stack: the first for which there is a kernel, which is compiled; 0 where there
/// is none. Remembered.
std::int64_t rows_of_items(std::int64_t weight, ExpertProducts::Question question, void* stream);

/// Of the stacks whose experts are weights of this session. Throws as session() does.
ExpertProducts& expert_products(std::int64_t weight);

}  // namespace ladder
