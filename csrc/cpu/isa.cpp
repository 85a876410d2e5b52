// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#if defined(LADDER_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(LADDER_AARCH64)
#include <sys/auxv.h>
#endif

#include "base/error.h"

namespace ladder::cpu {
namespace {

#if defined(LADDER_X86)
/// Whether the processor has the tile instructions for bytes and bfloat16 and the system lets this
/// process use them. Linux wants to be asked, once, because signal frames and switches grow by the
/// 8 KiB of the tiles; where it refuses (an alternative signal stack is too small for them, say)
/// the machine counts as one without.
bool has_tiles() {
#if defined(__linux__)
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kTiles = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, -TILE, -INT8
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) != kTiles) return false;
    __get_cpuid(1, &a, &b, &c, &d);
    if ((c & bit_OSXSAVE) == 0) return false;
    unsigned low = 0, high = 0;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kState = 3u << 17;  // the system saves shapes and tiles
    if ((low & kState) != kState) return false;
    constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

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
    case Isa::amx:
      return has(Isa::avx512_bf16) && __builtin_cpu_supports("avx512vnni") && has_tiles();
    default: return false;
  }
}
#elif defined(LADDER_AARCH64)
/// Whether the system says that the processor has an extension of ARMv8-A.
#if defined(__APPLE__)
bool says(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return says("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return says("hw.optional.arm.FEAT_I8MM"); }
#else
// Of <asm/hwcap.h>, whose older versions lack the second.
constexpr unsigned long kDotprod = 1ul << 20, kI8mm = 1ul << 13;
bool has_dotprod() { return (getauxval(AT_HWCAP) & kDotprod) != 0; }
bool has_i8mm() { return (getauxval(AT_HWCAP2) & kI8mm) != 0; }
#endif

bool has(Isa isa) {
  switch (isa) {
    case Isa::generic:
    case Isa::neon: return true;
    case Isa::neon_dotprod: return has_dotprod();
    case Isa::neon_i8mm: return has_dotprod() && has_i8mm();
    default: return false;
  }
}
#else
bool has(Isa isa) { return isa == Isa::generic; }
#endif

}  // namespace

std::vector<Isa> built_isas() {
#if defined(LADDER_X86)
  return {Isa::generic, Isa::avx2, Isa::avx_vnni, Isa::avx512, Isa::avx512_bf16, Isa::amx};
#elif defined(LADDER_AARCH64)
  return {Isa::generic, Isa::neon, Isa::neon_dotprod, Isa::neon_i8mm};
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
    case Isa::amx: return "amx";
    case Isa::neon: return "neon";
    case Isa::neon_dotprod: return "neon_dotprod";
    case Isa::neon_i8mm: return "neon_i8mm";
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
    case Isa::amx: return amx_kernels();
#elif defined(LADDER_AARCH64)
    case Isa::neon:
    case Isa::neon_dotprod:
    case Isa::neon_i8mm: return neon_kernels();
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
    case Isa::amx: return int8::amx_kernels();
#elif defined(LADDER_AARCH64)
    case Isa::neon: return int8::neon_kernels();
    case Isa::neon_dotprod: return int8::neon_dotprod_kernels();
    case Isa::neon_i8mm: return int8::neon_i8mm_kernels();
#endif
    default: break;
  }
  fail<InternalError>("instruction set ", name(isa), " has no kernels for x of 8 bits");
}

}  // namespace ladder::cpu
