// SPDX-License-Identifier: Apache-2.0
//
// From a program that says what is computed to one that says when: functions of programs.
#pragma once

#include "program/program.h"

namespace ladder {

/// The same program with the Barriers that its accesses to memory need and no others; those that
/// it has are taken out first. What each thread reads and writes is followed byte by byte through
/// all trips of all loops, so a thread that reads what it wrote itself costs nothing. None can be
/// left out; one in a loop is there because a trip needs it.
/// Throws InternalError naming the instruction when threads write the same bytes in one
/// instruction, which no barrier can order, and Unsupported when shared memory is indexed by more
/// than 64 combinations of block numbers.
Program with_barriers(Program program);

/// How many Barriers the text of a program has, in loops and conditions too.
int count_barriers(const Program& program);

/// The same program with the copies of each loop that begins with copies to shared memory started
/// `stages` - 1 trips ahead: their buffers become rings of `stages`, and the first trips' copies go
/// before the loop. The loop is to begin with CopyAsync, or with an Expect and the CopyBulks that
/// it counts, then a Commit and Wait or an Await (Barriers between are ignored), and to use its
/// variable in nothing but indices. Its copies are then waited for at the start of a trip; put
/// with_barriers() after. Left alone are loops of another form, whose buffers or signals are used
/// elsewhere, of bulk copies within another loop, and all with `stages` 1.
/// Throws InvalidArgument for `stages` below 1.
Program with_pipeline(Program program, int stages);

}  // namespace ladder
