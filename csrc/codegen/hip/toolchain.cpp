// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/toolchain.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/hip/code_object.h"
#include "codegen/hip/compilers.h"

namespace ladder::hip {
namespace {

constexpr std::string_view kHiprtc = "hiprtc", kClang = "clang";
constexpr std::string_view kOptions = " -O3 -std=c++17 -ffp-contract=on";
// Without -fuse-cuid=none code objects hold a hash of the path of their source.
constexpr std::string_view kClangOptions =
    " -x hip --cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc"
    " -mcode-object-version=5 -fuse-cuid=none";

/// "gfx942" of "gfx942:sramecc+:xnack-".
std::string_view without_features(std::string_view architecture) {
  return architecture.substr(0, architecture.find(':'));
}

struct Flags {
  std::string kind;
  std::vector<std::string> options;

  std::string_view architecture() const {
    const std::string_view first = options.front();
    return without_features(first.substr(std::min(first.find('=') + 1, first.size())));
  }
};

Flags parsed(std::string_view text) {
  std::istringstream words{std::string(text)};
  Flags flags;
  words >> flags.kind;
  for (std::string word; words >> word;) flags.options.push_back(word);
  const bool known = flags.kind == kHiprtc || flags.kind == kClang;
  LADDER_REQUIRE(
      known && !flags.options.empty() && flags.options.front().starts_with("--offload-arch="), "\"",
      text, "\" are no flags of a HIP compiler");
  return flags;
}

/// The first that knows it. Throws Unsupported.
Clang clang_for(std::string_view architecture) {
  for (const Clang& clang : clangs()) {
    if (clang.knows(architecture)) return clang;
  }
  fail<Unsupported>("no clang of this machine compiles for ", architecture);
}

MachineCode described(CodeObject made) {
  MachineCode out{std::move(made.bytes), 0, 0, 0, std::move(made.log)};
  KernelResources most{};
  for (const KernelResources& kernel : kernels_of(out.bytes)) {
    for (auto KernelResources::*number :
         {&KernelResources::vgprs, &KernelResources::vgpr_spills, &KernelResources::sgpr_spills,
          &KernelResources::scratch_bytes}) {
      most.*number = std::max(most.*number, kernel.*number);
    }
    out.log += joined(out.log.empty() ? "" : "\n", kernel.name, ": ", kernel.vgprs, " vgprs, ",
                      kernel.agprs, " of them agprs, ", kernel.sgprs, " sgprs, ",
                      kernel.scratch_bytes, " bytes of scratch, ", kernel.lds_bytes,
                      " bytes of LDS, ", kernel.argument_bytes, " bytes of arguments");
  }
  out.registers = static_cast<int>(most.vgprs);
  out.stack_bytes = static_cast<int>(most.scratch_bytes);
  out.spill_bytes = static_cast<int>(4 * most.vgpr_spills);
  std::smatch occupancy;
  if (most.sgpr_spills > 0) {
    out.warning = joined("spills ", most.sgpr_spills, " scalar registers");
  } else if (most.scratch_bytes > 0) {
    out.warning = joined("has ", most.scratch_bytes, " bytes of a lane in scratch memory");
  } else if (std::regex_search(out.log, occupancy,
                               std::regex("failed to meet occupancy target[^\n]*"))) {
    out.warning = occupancy[0];
  }
  return out;
}

}  // namespace

std::string compiler_version(std::string_view flags) {
  if (!flags.empty()) {
    const Flags wanted = parsed(flags);
    return wanted.kind == kHiprtc ? hiprtc_version() : clang_for(wanted.architecture()).version;
  }
  if (auto version = hiprtc_version(); !version.empty()) return version;
  const auto all = clangs();
  return all.empty() ? std::string() : all.front().version;
}

std::vector<std::string> architectures() {
  std::vector<std::string> all;
  for (const char* each : {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}) {
    if (compiler_objection(each).empty()) all.emplace_back(each);
  }
  return all;
}

std::string compiler_objection(std::string_view architecture) {
  const std::string_view plain = without_features(architecture);
  if (hiprtc_knows(plain)) return {};
  std::string known = hiprtc_version();
  for (const Clang& clang : clangs()) {
    if (clang.knows(plain)) return {};
    known += (known.empty() ? "" : ", ") + clang.version;
  }
  if (known.empty()) {
    return "neither libhiprtc nor a clang with AMD's GPUs (ROCm's, clang++-22, clang++-19) was "
           "found";
  }
  return joined("none of the compilers of this machine knows ", plain, ": ", known);
}

std::string flags_for(std::string_view architecture) {
  if (auto why = compiler_objection(architecture); !why.empty()) fail<Unsupported>(why);
  if (!hiprtc_knows(without_features(architecture))) return clang_flags(architecture);
  return joined(kHiprtc, " --offload-arch=", architecture, kOptions);
}

std::string clang_flags(std::string_view architecture) {
  return joined(kClang, " --offload-arch=", architecture, kOptions, kClangOptions);
}

MachineCode compile(std::string_view source, std::string_view text) {
  const Flags flags = parsed(text);
  return described(flags.kind == kHiprtc ? compile_by_hiprtc(std::string(source), flags.options)
                                         : compile_by_clang(clang_for(flags.architecture()),
                                                            std::string(source), flags.options));
}

}  // namespace ladder::hip
