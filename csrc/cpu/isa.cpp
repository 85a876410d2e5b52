// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#include "base/error.h"

namespace ladder::cpu {
namespace {

#if defined(LADDER_X86)
bool has(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::generic: return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    case Isa::avx_vnni: return has(Isa::avx2) && __builtin_cpu_supports("avxvnni");
    case Isa::avx512:
      return has(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
    case Isa::avx512_bf16: return has(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
    default: return false;
  }
}
#elif defined(LADDER_AARCH64)
bool has(Isa isa) { return isa == Isa::generic || isa == Isa::neon; }
#else
bool has(Isa isa) { return isa == Isa::generic; }
#endif

}  // namespace

std::vector<Isa> built_isas() {
#if defined(LADDER_X86)
  return {Isa::generic, Isa::avx2, Isa::avx_vnni, Isa::avx512, Isa::avx512_bf16};
#elif defined(LADDER_AARCH64)
  return {Isa::generic, Isa::neon};
#else
  return {Isa::generic};
#endif
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas = built_isas();
  std::erase_if(isas, [](Isa isa) { return !has(isa); });
  return isas;
}

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::generic: return "generic";
    case Isa::avx2: return "avx2";
    case Isa::avx_vnni: return "avx_vnni";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::neon: return "neon";
  }
  return "unknown";
}

const Kernels& kernels_of(Isa isa) {
  LADDER_REQUIRE(has(isa), "this machine cannot run the ", name(isa), " kernels");
  switch (isa) {
    case Isa::generic: return generic_kernels();
#if defined(LADDER_X86)
    case Isa::avx2:
    case Isa::avx_vnni: return avx2_kernels();
    case Isa::avx512: return avx512_kernels();
    case Isa::avx512_bf16: return avx512_bf16_kernels();
#elif defined(LADDER_AARCH64)
    case Isa::neon: return neon_kernels();
#endif
    default: break;
  }
  fail<InternalError>("instruction set ", name(isa), " has no kernels");
}

const int8::Kernels& int8_kernels_of(Isa isa) {
  LADDER_REQUIRE(has(isa), "this machine cannot run the ", name(isa), " kernels");
  switch (isa) {
    case Isa::generic: return int8::generic_kernels();
#if defined(LADDER_X86)
    case Isa::avx2: return int8::avx2_kernels();
    case Isa::avx_vnni: return int8::avx_vnni_kernels();
    case Isa::avx512:
    case Isa::avx512_bf16:
      return __builtin_cpu_supports("avx512vnni") ? int8::avx512_vnni_kernels()
                                                  : int8::avx2_kernels();
#elif defined(LADDER_AARCH64)
    case Isa::neon: return int8::generic_kernels();
#endif
    default: break;
  }
  fail<InternalError>("instruction set ", name(isa), " has no kernels for x of 8 bits");
}

}  // namespace ladder::cpu
