// SPDX-License-Identifier: Apache-2.0
//
// Enough of a GPU to run the text of emitted kernels on this processor, for tests: threads of a
// cluster of blocks as fibers of one thread, warps in a random order, asynchronous copies that end
// at a random time or as late as they may. What is not waited for is found because it is then not
// there yet: shared memory begins as NaN in every format.
//
// Not modelled: stores that other threads see late (they are seen at once, but what runs in between
// is random), so that of fences only the places are checked; caches; the order between clusters,
// which run one after another; and that of a warpgroup's warps around a product, at which they meet
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "instructions.h"

namespace ladder::emulate {

struct Launch {
  unsigned grid[2];     ///< blocks along x and y
  unsigned cluster[2];  ///< of which so many form a cluster
  unsigned threads;
  std::int64_t shared_bytes;
  unsigned seed;  ///< of the order in which things happen
  /// Does what the preceding kernel does, of which this one is a dependent launch: before it
  /// begins, or only when a thread first waits for it. Returns what this one did too early, or "".
  std::function<std::string()> preceding = nullptr;
  unsigned lanes = 32;     ///< of a warp, or of a wave: 32 or 64
  bool subnormals = true;  ///< of operands are multiplied; else they are zero
  unsigned items = 1;      ///< blocks along z
  bool fnuz = false;       ///< of 8 bits, floating operands are e4m3fnuz; else e4m3
};

/// Runs `kernel` once for each thread. Returns why it is wrong, or "": a deadlock, warps that
/// diverge at an instruction of all lanes, addresses that are outside shared memory or no multiple
/// of what they access, writes beside it, signals with too many arrivals, blocks that end while
/// something is on its way into them, a preceding kernel that nobody waits for.
std::string run(const Launch& launch, const std::function<void()>& kernel);

// What instructions need, for the thread that runs.

unsigned thread_index();
unsigned block_index(int dimension);
/// Blocks of the grid, and threads of a block.
unsigned block_count(int dimension);
unsigned thread_count();
unsigned rank_in_cluster();
/// Launch::lanes.
unsigned warp_lanes();

/// The block's shared memory: as the kernel points into it, and by address, whose upper bits name
/// the block of the cluster.
unsigned char* shared_memory();
/// Of variables that are declared __shared__ with a size of their own, at most 64 KB: the `which`th
/// of four.
unsigned char* static_shared(unsigned which);
std::uint32_t address_of(const void* shared);
std::uint32_t address_in(std::uint32_t address, unsigned rank);
unsigned char* at(std::uint32_t address, std::int64_t bytes);
/// An address of the thread's own block, which instructions without ::cluster take, and a pointer
/// to global memory at a multiple of `bytes`; both as they came.
std::uint32_t own(std::uint32_t address);
const void* aligned(const void* global, unsigned bytes);

/// All lanes of a warp come here with `mine`; then `together` is called once with what they
/// brought.
void with_warp(void* mine, void (*together)(void* const* lanes));
/// The same of all 128 lanes of a warpgroup.
void with_warpgroup(void* mine, void (*together)(void* const* lanes));
void block_barrier();
/// Of so many threads, whichever come.
void barrier_of(unsigned threads);
bool block_and(bool mine);
void cluster_barrier();
void wait_for_preceding();

/// Fences of the workgroup, or of the whole device, before and after which threads meet. A barrier
/// of AMD's devices orders nothing by itself: each thread comes from a release, and goes to an
/// acquire before the next one. One thread of a workgroup takes its ticket when all have released
/// to the device; when it came last, all acquire before they end.
void fence(bool release, bool device);
void fenced_barrier();
void took_ticket();
void came_last();
/// Of AMD's devices: a wave goes before others of its SIMD, or no longer. Barriers are counted
/// (phases.cpp): of two waves of a SIMD one at most has raised its priority between the same
/// barriers, and threads of a workgroup end after as many.
void set_priority(bool raised);

void copy_async(std::uint32_t to, const void* from, unsigned whole, unsigned bytes);
void copy_commit();
void copy_wait(int pending);
void copy_wait_all();

/// Four bytes to shared memory, as a thread writes them.
void store_shared(std::uint32_t to, std::uint32_t value);
/// What this thread wrote to shared memory, and copies that it waited for, is there for products.
void matrix_fence();
/// What the threads of a warpgroup wrote to registers is there for the products up to the next
/// commit. All groups of products begin with one: the PTX ISA lets those do without that find
/// registers as a product left them.
void products_fence();
/// A product of a warpgroup that ends later, but before those after it: d += a b, 64 rows by
/// `tokens`, 32 bytes of columns. Register i of a lane is as multiply_f16() and multiply_u8() have
/// them, of the 16 rows of its warp; b has tokens as rows of 128 bytes, swizzled, from where the
/// descriptor says. Sums are f32, of integers s32.
void product_begins(void* d, const std::uint32_t* a, std::uint64_t b, int tokens, Operands of);
void products_commit();
void products_wait(int pending);

/// Tensor memory (tensors.cpp), as the PTX ISA has it: the columns that a block asks for are the
/// last of 512. A store ends at a wait of its thread. Products begin in order and end in order, a
/// commit among them. What follows a barrier or a signal needs a fence behind that.
void tensor_alloc(std::uint32_t to, unsigned columns);
void tensor_free(std::uint32_t address, unsigned columns);
void tensor_fence(bool after);
void tensor_store(std::uint32_t to, const std::uint32_t* words);
void tensor_wait();
void tensor_product(std::uint32_t sums, std::uint32_t a, std::uint64_t b, std::uint32_t how,
                    bool added);
void tensor_commit(std::uint32_t signal);
void tensor_load(float* to, int registers, std::uint32_t from);

void signal_init(std::uint32_t signal, unsigned arrivals);
void signal_arrive(std::uint32_t signal, std::int64_t expected_bytes);
void signal_arrive_after_copies(std::uint32_t signal);
/// Whether the phase of that parity is over; lets others run when it is not.
bool signal_over(std::uint32_t signal, unsigned parity);
/// By the copy engine into every block of `blocks`, a bit each; its signal hears of the bytes.
void copy_bulk(std::uint32_t to, const void* from, unsigned bytes, std::uint32_t signal,
               unsigned blocks);

/// Launch::subnormals.
bool subnormals_multiply();
/// Launch::fnuz.
bool reads_fnuz();

[[noreturn]] void wrong(const std::string& why);

}  // namespace ladder::emulate
