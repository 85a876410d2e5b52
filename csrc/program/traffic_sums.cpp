// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "program/traffic.h"

namespace ladder {
namespace {

double visits(const std::vector<Statement>& body) {
  double sum = 0;
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      sum += static_cast<double>(loop->trips) * visits(loop->body);
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      sum += visits(branch->body);
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      sum += visits(part->body);
    } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
      sum += visits(part->body);
    } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
      sum += visits(part->body);
    } else {
      sum += 1;
    }
  }
  return sum;
}

}  // namespace

double traffic_visits(const Program& program) { return visits(program.body); }

AccessCount total(const Program& program, const std::vector<MemoryTraffic>& rows, Level level) {
  AccessCount sum;
  for (const auto& row : rows) {
    if (program.buffers[row.buffer].level == level) sum += row.count;
  }
  return sum;
}

std::string to_string(const Program& program, const std::vector<MemoryTraffic>& rows) {
  std::ostringstream out;
  for (const auto& row : rows) {
    const Buffer& buffer = program.buffers[row.buffer];
    const auto& c = row.count;
    out << (row.write ? "writes " : "reads ") << buffer.name << " in " << c.accesses
        << " accesses, ";
    if (buffer.level == Level::shared) {
      out << c.wavefronts << " wavefronts, " << c.wavefronts - c.phases << " conflicts: ";
    } else {
      out << c.sectors << " sectors, at least " << c.least_sectors << ", " << c.lines << " lines: ";
    }
    out << row.instruction << '\n';
  }
  return out.str();
}

}  // namespace ladder
