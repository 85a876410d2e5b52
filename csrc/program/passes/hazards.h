// SPDX-License-Identifier: Apache-2.0
//
// Where a program without barriers goes wrong: the first access that another thread's must precede.
// Internal to csrc/program/passes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program/program.h"

namespace ladder {

/// One execution of an instruction: its index in each body from the outermost, and the trip of the
/// loop that each index but the first is in (0 for a condition).
struct Moment {
  std::vector<int> path;
  std::vector<std::int64_t> trips;
};

/// `before` and `after` touch the same memory from different threads, one writes, and no barrier
/// lies between.
struct Hazard {
  Moment before, after;
  std::string instruction;  ///< `after`, printed
};

/// Follows one block through a program: hazards.cpp steps, hazard_accesses.cpp touches memory. What
/// is only the other checks' business, such as a copy that nobody waits for, is passed over.
class Hazards {
 public:
  /// `same`: of threads that store the same element at once each has its value.
  explicit Hazards(const Program& program, bool same = false);

  /// The first of any block, or nothing.
  std::optional<Hazard> first();

 private:
  struct Facts {
    int writer = kNobody, reader = kNobody;
    int write_epoch = 0, read_epoch = 0;
    int write_moment = 0, read_moment = 0;
    bool pending = false;
  };
  /// What a thread adds to an index, and a slot; the same for the dimensions that the call bounds.
  struct Part {
    std::vector<std::int64_t> threads, slots;
  };
  struct Footprint {
    Part elements;
    std::vector<std::pair<Part, std::int64_t>> bounded;  // with their limits
  };
  struct Copy {
    std::int64_t first, count;  // granules
  };
  /// The last time that an instruction read the tile at one place, noted in the facts when someone
  /// writes there: most tiles are read again and again before that.
  struct Read {
    const Footprint* tile;
    Half half;
    std::int64_t start, width;  // granules
    int epoch, moment, synchronised;
  };
  struct Phase {
    int number = 0, arrived_at = -1;
    std::vector<Copy> copies;
  };
  struct GlobalUse {
    int epoch = -1, moment = 0;
    const Layout* layout = nullptr;
    ViewId view = -1;
    std::vector<Affine> at;
  };
  static constexpr int kNobody = -1, kSeveral = -2, kEngine = -3;

  void run(const std::vector<Statement>& body);
  /// Of halves both phases between two barriers, in one order: what another would show, facts of
  /// this one do.
  void alternate(const Alternate& part);
  void instruction(const Statement& statement);
  std::int64_t value(const Affine& affine) const;
  const Footprint& footprint(const void* key, const Layout& layout, const View& view);
  std::int64_t limit(const View& view, std::size_t d) const;
  void access(const void* key, const Layout& layout, ViewId view, const std::vector<Affine>& at,
              bool write, bool pending);
  void copy_async(const CopyAsync& i);
  void copy_bulk(const CopyBulk& i);
  void copy_rows(const CopyRows& i);
  void by_engine(ViewId to, Phase& phase);
  void plain_copy(ViewId id, std::int64_t run);
  void multiply(const MmaShared& i);
  void end_products(int pending);
  void look_up(ViewId table);
  void load_units(const LoadUnits& i);
  void reduce(const Reduce& i);
  void global(BufferId buffer, const Layout& layout, ViewId view, const std::vector<Affine>& at,
              bool write);
  void touch(std::int64_t granule, int thread, bool write, bool pending);
  void note(const Read& read);
  void note_reads();
  void before_writing(BufferId buffer);
  template <class Visit>
  static void each(const Footprint& tile, Half half, std::int64_t start, std::int64_t width,
                   const Visit& visit);
  void clash(int before);
  /// Of the role that goes on; of both while there is one.
  void barrier() {
    known_[0] = epoch_;
    if (together_) known_[1] = epoch_;
    ++epoch_;
  }
  /// What happened up to then, the role at hand sees.
  int synchronised() const { return known_[role_]; }
  std::int64_t granules(BufferId buffer) const;
  /// The element behind the view's first that coordinate `at` is.
  std::int64_t origin(const View& view, const std::vector<Affine>& at) const;
  /// The granule of an element behind the view's first.
  std::int64_t place(const View& view, std::int64_t element = 0) const;
  std::vector<VariableId> block_variables() const;

  const Program& program_;
  const bool same_;
  bool in_tail_ = false;
  const int granule_;  // bytes
  std::vector<Facts> facts_;
  std::vector<std::int64_t> variables_;
  std::map<const void*, Footprint> footprints_;
  using Place = std::tuple<const void*, Half, std::int64_t>;  // an instruction, and where it reads
  std::vector<std::map<Place, Read>> reads_;                  // by buffer
  std::vector<std::vector<Phase>> phases_;
  std::vector<int> initialised_, initialised_moment_;  // by signal: epoch
  std::vector<GlobalUse> written_, read_;              // by buffer
  std::vector<std::vector<Copy>> groups_;              // the last is open
  std::vector<std::vector<Copy>> products_;            // what those on their way read
  std::map<ViewId, int> looked_up_;                    // the epoch of the last look into each table
  std::vector<Moment> moments_;
  Moment now_;
  std::optional<Hazard> found_;
  const Statement* statement_ = nullptr;
  int epoch_ = 0;
  Half half_ = Half::both;            // that runs
  int role_ = 0;                      // consumers; of a program without roles, all threads
  bool together_ = true;              // both roles run this
  std::array<int, 2> known_{-1, -1};  // by role
};

}  // namespace ladder
