// SPDX-License-Identifier: Apache-2.0
//
// Copies by the copy engine, and the signals (mbarriers) that say when they have ended. A signal
// counts phases 0, 1, 2, ...; one ends when all its arrivals have come and all bytes that they
// expect are there:
//
//     signal_init full                      arrivals 1: the thread that expects
//     barrier
//     expect full[s], 4096 bytes            opens the phase's account
//     copy_bulk ring = weight[...] on full[s]
//     await full[s] parity 0                phase 0 has ended: every thread may read `ring`
//
// Phases are told apart by their parity only, so each must be awaited before the next one begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/affine.h"

namespace ladder {

/// `count` mbarriers in shared memory. Each phase of one takes `arrivals`: 1 for an Expect plus the
/// threads of the block for an Arrive.
struct Signal {
  std::string name;
  std::int64_t count;
  int arrivals;
};

/// Before any other use, and a Barrier after it.
struct SignalInit {
  SignalId signal;
};
/// One thread arrives; the phase does not end before `bytes` have been copied.
struct Expect {
  SignalId signal;
  Affine index;
  std::int64_t bytes;
  Affine guard = 0;  ///< nothing happens unless it is below `below`
  std::int64_t below = 1;
};
/// Who arrives, and when.
enum class Arrival {
  threads,  ///< every thread, here
  copies,   ///< every thread, when the CopyAsyncs have ended that it started since the last Commit
            ///< or Arrive of this kind; says nothing of what else it did
};
struct Arrive {
  SignalId signal;
  Affine index;
  Arrival by = Arrival::threads;
};
/// All threads wait for the end of the phase of that parity, the present or the one before it.
struct Await {
  SignalId signal;
  Affine index, parity;
};
/// to[i] = from[at + i] for the whole of `to`, a shared view; counted by the signal. All of it
/// lies inside `from`: the copy engine fills no borders.
struct CopyBulk {
  ViewId to, from;
  std::vector<Affine> at;
  SignalId signal;
  Affine index;
  Affine guard = 0;  ///< nothing happens unless it is below `below`
  std::int64_t below = 1;
};

/// Row r of `to` = row r of `from` from column `at` on, for the tokens of the call; other rows of
/// `to` stay as they are. Opens a phase of the signal's account for these bytes, which is its one
/// arrival. With `multicast` the blocks of the cluster divide the rows among themselves, row r to
/// block r modulo their number, and each copies its rows to all of them: the phase of each counts
/// all rows. Then a ClusterBarrier belongs after SignalInit.
struct CopyRows {
  ViewId to, from;
  Affine at;
  SignalId signal;
  Affine index;
  bool multicast = false;
};

}  // namespace ladder
