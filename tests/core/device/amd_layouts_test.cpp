// SPDX-License-Identifier: Apache-2.0
//
// amd_matrix_layouts.csv: which lane and slot of an operand holds what, of AMD's matrix
// instructions. `lane_bits` and `slot_bits` have, for each bit from the lowest, what it adds to
// row, or column, k and block; rows of source "calculator" come from AMD's Matrix Instruction
// Calculator, of every lane and slot.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "device/device.h"

namespace ladder {
namespace {

using At = std::array<std::int64_t, 3>;

struct Operand {
  char matrix;
  int m, n, k, blocks, lanes, slots;
  std::vector<At> lane_bits, slot_bits;

  At at(std::int64_t lane, std::int64_t slot) const {
    At out{};
    const auto add = [&](const std::vector<At>& bits, std::int64_t number) {
      for (std::size_t bit = 0; bit < bits.size(); ++bit) {
        if ((number >> bit & 1) == 0) continue;
        for (int d = 0; d < 3; ++d) out[d] ^= bits[bit][d];
      }
    };
    add(lane_bits, lane);
    add(slot_bits, slot);
    return out;
  }
};

std::vector<At> bits_of(const std::string& text) {
  std::vector<At> out;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::istringstream numbers(word);
    At at{};
    char slash;
    numbers >> at[0] >> slash >> at[1] >> slash >> at[2];
    out.push_back(at);
  }
  return out;
}

/// By architecture and instruction.
const std::map<std::pair<std::string, std::string>, std::vector<Operand>>& published() {
  static const auto all = [] {
    std::map<std::pair<std::string, std::string>, std::vector<Operand>> out;
    std::ifstream file(LADDER_AMD_LAYOUTS);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::vector<std::string> cells;
      std::istringstream row(line);
      for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
      const auto number = [&](int i) { return std::stoi(cells[i]); };
      out[{cells[0], cells[1]}].push_back({cells[2][0], number(3), number(4), number(5), number(6),
                                           number(8), number(9), bits_of(cells[12]),
                                           bits_of(cells[13])});
    }
    return out;
  }();
  return all;
}

TEST(AmdLayouts, of_every_instruction_of_the_table_are_the_published_ones) {
  ASSERT_GE(published().size(), 30U);
  int compared = 0;
  for (const Device& device : devices()) {
    if (!is_amd(device.family)) continue;
    auto rows = instructions(device);
    for (const Scalar operand : {Scalar::f16, Scalar::bf16}) {
      if (const auto* row = few_tokens_instruction(operand, Fragment::wave_blocks, device)) {
        rows.push_back(row);
      }
    }
    for (const MatrixInstruction* row : rows) {
      std::string name(row->name);
      // Published with scales, of each format.
      if (name.ends_with("_f8f6f4")) name.replace(0, 7, "v_mfma_scale_").append(":fp8");
      auto found = published().find({std::string(device.architecture), name});
      if (found == published().end()) {
        // What a later machine took over: as on the one before.
        found = published().find({"gfx942", name});
        EXPECT_EQ(device.architecture, "gfx950") << name << " is not in the table";
      }
      ASSERT_NE(found, published().end()) << device.name << ": " << name;
      for (const Operand& operand : found->second) {
        ASSERT_EQ(operand.blocks, row->copies) << name;
        EXPECT_EQ(std::tuple(row->m, row->n, row->k), std::tuple(operand.m, operand.n, operand.k))
            << name;
        const Layout layout = operand.matrix == 'A'   ? row->a()
                              : operand.matrix == 'B' ? row->b()
                                                      : row->d();
        ASSERT_EQ(layout.thread_count(), operand.lanes) << name;
        ASSERT_EQ(layout.slot_count(), operand.slots) << name;
        for (std::int64_t lane = 0; lane < operand.lanes; ++lane) {
          for (std::int64_t slot = 0; slot < operand.slots; ++slot) {
            const At at = operand.at(lane, slot);
            std::vector<std::int64_t> wanted{at[0], at[1]};
            if (row->copies > 1) wanted.insert(wanted.begin(), at[2]);
            ASSERT_EQ(layout(lane, slot), wanted)
                << name << " " << operand.matrix << " lane " << lane << " slot " << slot;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 20000);
}

}  // namespace
}  // namespace ladder
