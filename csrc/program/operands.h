// SPDX-License-Identifier: Apache-2.0
//
// The instructions that make operands and sums out of what a weight stores: codes, zero points and
// scales.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "expr/decoding.h"
#include "expr/gating.h"
#include "layout/bit_plan.h"
#include "layout/digits.h"
#include "layout/layout.h"
#include "program/affine.h"

namespace ladder {

// A operands of one k-step out of packed words. `from` holds blocks of the weight image, `block`
// picks one and `step` one of its k-steps, four where an instruction has 16 columns. A lane has the
// words of one lane of the image, or of several, one after the other, where its operands have the
// columns of these.

/// Where a word of an A operand of 16 bits, a pair of neighbours of a row, comes from: the unit of
/// 16 rows, which of the lane's lanes of the image, and of that one the k-step of 16 columns and
/// the register, relative to the first of the tile.
struct OperandWord {
  std::int64_t unit, lane, step, r;
  std::int64_t row() const { return 2 * unit + r % 2; }  ///< of those that the lane has
};
struct OperandWords {
  std::vector<OperandWord> words;
  std::int64_t units = 0, lanes = 0, steps = 0;

  /// The first of the words of codes of `bits` bits, of such words of codes in `block`.
  std::int64_t first(const OperandWord& word, std::int64_t block, int bits) const {
    return ((block * lanes + word.lane) * units + word.unit) * bits;
  }
  /// The pair of the image's unit, in k-step `step` of the instruction.
  std::int64_t pair(const OperandWord& word, std::int64_t step) const {
    return 4 * (step * steps + word.step) + word.r;
  }
};
OperandWords operand_words(const Layout& a);

/// Integers: (code * 2^shift - zero) * 2^exponent, plus zeros[w, row] where there are such; or with
/// `in_place` what layout/in_place.h says. Of `three` values in 2 bits, code 3 is first made 1.
/// With `ones` the code is read as the mantissa of a number that begins with one, so that there is
/// room for an exponent of 0; then, with `scales`, times scales[group, row], integers in u8: one
/// multiply-add, which rounds nothing.
struct Unpack {
  RegisterId to, from;
  Affine block, step;
  int bits;
  bool in_place;
  int zero, exponent;
  int shift = 0;
  RegisterId zeros = -1;
  bool three = false;
  bool ones = false;
  RegisterId scales = -1;
  Affine group = 0;
};
/// How the codes of a pair are read into halves of `operand`, and what is ORed to these; of a pair
/// at `offset`, by what they are multiplied, and, of `ones`, what these are then.
UnpackPlan plan_of(const Unpack& i, Scalar operand);
std::uint32_t joined_of(const Unpack& i, Scalar operand);
double factor_of(const Unpack& i, Scalar operand, int offset);
double ones_of(const Unpack& i, Scalar operand, int offset);
/// What is added where no zero points are stored, before scales.
double constant_of(const Unpack& i, Scalar operand, int offset);
/// The codes of a word, each 2 bits, with every 3 made 1.
constexpr std::uint32_t three_values(std::uint32_t word) {
  return word & ~(word << 1 & 0xaaaaaaaau);
}
/// Codes as bytes, out of `step` of the k-steps of a block, of 32 columns or 16, in the order of
/// digit_place: of u8 the code times 2^offset (layout/digits.h), of s8 as signed_byte_plan() has
/// it, or `below_sign` as offset_byte_plan() has it, or with a zero point, `zero` or zeros[row],
/// less that; or with `scales`, of u8, (code - zero) * scales[group, row], which is a number of s8;
/// of e4m3 a float with so many bits of a mantissa as float_byte_plan() has it, or of
/// integers, which have none, code * 2^shift as whole_byte_plan() has it, less a zero point; of
/// e4m3fnuz what fnuz_bytes() makes of that.
struct UnpackBytes {
  RegisterId to, from;
  Affine block, step;
  int bits;
  bool three = false;
  std::optional<int> mantissa_bits = std::nullopt;  ///< of floats
  int shift = 0;                                    ///< of integers in e4m3
  int zero = 0;
  RegisterId zeros = -1;
  bool below_sign = false;
  RegisterId scales = -1;
  Affine group = 0;
  bool has_zero() const { return zero != 0 || zeros >= 0; }
  /// Bytes of s8 are XORed with kSignBits.
  bool flips_sign() const { return !below_sign && !has_zero() && scales < 0; }
};
/// How the codes become bytes of `to`. Where they are s8, these are then XORed with kSignBits, or
/// are the first operand of less_zeros() or scaled_bytes(); integers in e4m3, of
/// whole_less_zeros().
const BytePlan& plan_of(const UnpackBytes& i, Scalar to);
/// Where LookupRelative has codes, each in the lowest bits of a byte: one piece of one word.
const BytePlan& relative_plan();
/// Which codes word `word` of an A operand of bytes has in `step`: of a unit of 16 rows, and of one
/// of the lane's lanes of the image, those of `r` of the registers that the plan has for
/// `plan_step`.
struct ByteWord {
  std::int64_t unit, plan_step, r, lane;
};
/// Units and lanes of the image that a lane has of an A operand of bytes; none where it has not the
/// same of each step.
struct ByteUnits {
  std::int64_t units, lanes;

  /// The first of the words of codes of `bits` bits, of such words of codes in `block`.
  std::int64_t first(const ByteWord& word, std::int64_t block, int bits) const {
    return ((block * lanes + word.lane) * units + word.unit) * bits;
  }
};
ByteUnits byte_units(const Layout& a);
ByteWord byte_word(const Layout& a, std::int64_t word, std::int64_t step);
/// Floating formats: what `fields` makes of the code; times scales[group, row], in e4m3 or, of
/// bf16, in e8m0, where there are such. By scales of e8m0 `fields` has a factor that is a bf16, and
/// the result is rounded once.
struct UnpackFloat {
  RegisterId to, from;
  Affine block, step;
  FloatFields fields;
  RegisterId scales = -1;
  Affine group = 0;
};
/// to[w, row, k] = to[w, row, k] * 2^exponent * scales[group, row], rounded once to nearest even in
/// to's format, of the rows of an A operand. Of the first two factors, or of bf16 the last two, the
/// product is a number of the format. Scales are in that, in e4m3 or in u8, of bf16 also in e8m0.
struct ScaleOperand {
  RegisterId to, scales;
  Affine group;
  int exponent = 0;
};
/// Any format of `bits` bits: what the table says. The table was filled by FillTable and has one
/// copy of each entry per lane, each in a bank of its own. Up to 4 bits one entry has both codes of
/// a pair, more would be too many.
struct Lookup {
  RegisterId to, from;
  Affine block, step;
  int bits;
  ViewId table;
};
/// to[entry, lane] for all lanes: entry e of `values`, or up to 4 bits the values of its low and of
/// its high `bits` bits in the low and high half. Plain writes to shared memory.
struct FillTable {
  ViewId to;
  int bits;
  std::vector<std::uint16_t> values;
};

/// to[i] = values[i]: plain writes to a shared view of words, in their order.
struct FillWords {
  ViewId to;
  std::vector<std::uint32_t> values;
};
/// to[0, row]: the largest of scales[first, row] to scales[first + count - 1, row], which are e8m0;
/// by code, so that NaN is larger than any number.
struct LargestScale {
  RegisterId to, scales;
  Affine first;
  int count;
};
/// Bytes of e4m3 in the order of UnpackBytes, of codes of 4 bits: a sign and a magnitude, which the
/// table has by the difference of largest[0, row] and scales[group, row] (RelativeOperands); the
/// last entry is that of all larger differences. The table was filled by FillWords.
struct LookupRelative {
  RegisterId to, from;
  Affine block, step;
  ViewId table;
  RegisterId scales;
  Affine group;
  RegisterId largest;
};

/// to[group, row] = numbers[group, row] * seconds[superblock, row] in f32, of integers of u8 or s8;
/// superblocks have as many groups each.
struct TimesSecond {
  RegisterId to, numbers, seconds;
};
/// What Unpack adds, out of integer zero points: to[w, row, 2] = -from[group, row] * 2^exponent; or
/// of u8, what UnpackBytes subtracts: to[w, row, 4] = from[group, row] * 2^exponent.
struct ZeroOperand {
  RegisterId to, from;
  Affine group;
  int exponent;
};
/// to[w, row, n] += (zero[group, row] * 2^exponent[row_parity(row)] - less) * sum[w, row, n]; a
/// `sum` of 16 rows repeats over the row units of a block.
struct Offset {
  RegisterId to, zero, sum;
  Affine group;
  int exponent[2];
  int less = 0;
};
/// to[w, row, n] (+)= acc[w, row, n] * scale[group, row] * 2^exponent[row_parity(row)]; without a
/// scale, the power of two only. Sums of s32 that are `biased` were begun at kSumBias and are less
/// than 2^22 apart from it: as bits they are f32, a subtraction away from the number, where a
/// conversion takes twice as long.
struct Scale {
  RegisterId to, acc, scale;
  Affine group;
  int exponent[2];
  bool accumulate;
  bool biased = false;
};
constexpr int kSumBias = 0x4b400000;       ///< the bits of kSumOfBias as f32
constexpr float kSumOfBias = 12582912.0f;  ///< 1.5 * 2^23
/// to += from or to *= from, slot by slot, in f32 or s32; the slots of a shorter `from` repeat, as
/// 16 rows do over the row units of a block.
struct Add {
  RegisterId to, from;
};
struct Multiply {
  RegisterId to, from;
};
/// to = from, slot by slot, as Add repeats them. Costs nothing where the next step adds to `to` by
/// the matrix instruction, which may leave its sum elsewhere.
struct Spread {
  RegisterId to, from;
};
/// to[w, j, n] = gated(from[w, r, n], from[w, r + 8, n]) where r = j / 8 * 16 + j % 8, in f32: rows
/// of the gate and of up alternate in eights (kGateRows). The thread that holds an element of `to`
/// holds both.
struct Gate {
  RegisterId to, from;
  Gating gating;
};
/// to = `what` of to, in f32.
struct Activate {
  RegisterId to;
  Gated what;
};
/// to[i] = the code of s8 or e4m3 that is nearest (nearest_code) to from[i] * (1 / scale), of f32
/// tiles, quotient and product each rounded to f32. `scale` is one number, which every thread has.
struct ToCodes {
  RegisterId to, from, scale;
};
/// The slots of gate and up that each slot of `to` takes, the same in all threads; nothing where a
/// thread lacks one.
struct GateSlots {
  std::int64_t gate, up;
};
std::optional<std::vector<GateSlots>> gate_slots(const Layout& to, const Layout& from);

/// to[p, digit_place(j)] = digit p of from[at[0], columns[at[1] + j]], or without `columns` of
/// from[at[0], at[1] + j], zero outside `from`: all of `to`, s8 in shared memory; rows past the
/// digits are zero. `unit`, one f32, becomes the unit of the digits (layout/digits.h) in all
/// threads, NaN where an element was not finite. A Barrier too, so that all know.
struct SplitDigits {
  ViewId to, from;
  std::vector<Affine> at;
  RegisterId unit;
  ViewId columns = -1;
};
/// What the digits of one token of `scalar` sum up to: to[w, row, 0] = unit * sum of to[w, row, p]
/// * 2^(8 p + digit_exponent); zero in the other columns.
struct JoinDigits {
  RegisterId to, unit;
  Scalar scalar;
};

/// to[i, j] = from[at[0] + i, columns[at[1] + j]], or without `columns` from[at[0] + i, at[1] + j];
/// zero outside `from`. For the whole of `to`, a shared view of two dimensions, by plain reads and
/// writes of single elements: for rows that are not whole pieces of 16 bytes, or out of order.
/// Nothing happens unless `guard` is below `below`.
struct CopyElements {
  ViewId to, from;
  std::vector<Affine> at;
  ViewId columns = -1;
  Affine guard = 0;
  std::int64_t below = 1;
};

}  // namespace ladder
