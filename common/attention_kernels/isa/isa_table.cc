#include "common/attention_kernels/isa/isa_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace tandem::attention {
namespace {

// What was compiled in for an instruction set.
struct IsaParts {
  Isa isa;
  bool (*cpu_has)();
  AttendSegmentFn (*kernel)(DType kv_dtype);
  StoreRowFn (*store_row)();
  std::span<const StreamReadForm> (*stream_reads)();
};

bool EveryCpu() { return true; }

#if defined(__x86_64__)

bool CpuHasAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

bool CpuHasAvx512Bf16() {
  return CpuHasAvx512() && __builtin_cpu_supports("avx512bf16") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
}

// AMX with bfloat16 and int8, and the kernel's permission for this process to use its registers.
// Asking fails where the kernel, a hypervisor or a signal stack that is too small for them forbids
// it.
bool MayUseAmxBf16() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr unsigned long kTileData = 18;
  constexpr unsigned kBf16 = 1u << 22;  // of leaf 7, EDX
  constexpr unsigned kTile = 1u << 24;
  constexpr unsigned kInt8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0 ||
      (d & kInt8) == 0) {
    return false;
  }
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool CpuHasAmxBf16() {
  static const bool may_use_amx = MayUseAmxBf16();
  return CpuHasAvx512Bf16() && may_use_amx;
}

constexpr IsaParts kIsas[] = {
    {Isa::kScalar, EveryCpu, ScalarKernel, ScalarStoreRow, ScalarStreamReads},
    {Isa::kAvx2, CpuHasAvx2, Avx2Kernel, Avx2StoreRow, Avx2StreamReads},
    {Isa::kAvx512, CpuHasAvx512, Avx512Kernel, Avx512StoreRow, Avx512StreamReads},
    {Isa::kAvx512Bf16, CpuHasAvx512Bf16, Avx512Bf16Kernel, Avx512StoreRow, Avx512StreamReads},
    {Isa::kAmxBf16, CpuHasAmxBf16, AmxBf16Kernel, Avx512StoreRow, Avx512StreamReads},
};

#elif defined(__aarch64__)

bool CpuHasNeon() { return (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0; }

bool CpuHasNeonBf16() { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }

bool CpuHasSve256() {
  const unsigned long vector_bits = (static_cast<unsigned long>(prctl(PR_SVE_GET_VL)) & 0xffff) * 8;
  return (getauxval(AT_HWCAP) & HWCAP_SVE) != 0 && vector_bits == 256 &&
         (getauxval(AT_HWCAP2) & HWCAP2_SVEBF16) != 0;
}

constexpr IsaParts kIsas[] = {
    {Isa::kScalar, EveryCpu, ScalarKernel, ScalarStoreRow, ScalarStreamReads},
    {Isa::kNeon, CpuHasNeon, NeonKernel, NeonStoreRow, NeonStreamReads},
    {Isa::kNeonBf16, CpuHasNeonBf16, NeonBf16Kernel, NeonStoreRow, NeonStreamReads},
    {Isa::kSve256, CpuHasSve256, Sve256Kernel, Sve256StoreRow, Sve256StreamReads},
};

#else

constexpr IsaParts kIsas[] = {
    {Isa::kScalar, EveryCpu, ScalarKernel, ScalarStoreRow, ScalarStreamReads},
};

#endif

// Null: this architecture has no such instruction set.
const IsaParts* Find(Isa isa) {
  for (const IsaParts& parts : kIsas) {
    if (parts.isa == isa) {
      return &parts;
    }
  }
  return nullptr;
}

const IsaParts& FindOrScalar(Isa isa) {
  const IsaParts* parts = Find(isa);
  return parts != nullptr ? *parts : kIsas[0];
}

}  // namespace

#if defined(__x86_64__)
Prefetch PrefetchRule(DType kv_dtype, int group_size, int block_tokens) {
  static const bool intel = __builtin_cpu_is("intel") != 0;
  if (intel) {
    return Prefetch::kAhead;
  }
  // Zen 3.
  static const bool narrow = __builtin_cpu_supports("avx512f") == 0;
  if (narrow) {
    return Prefetch::kNextTile;
  }
  // Zen 4: where tiles are short or the arithmetic between two loads is long.
  const bool long_arithmetic = kv_dtype == DType::kInt8 ? group_size > 1 : group_size > 4;
  return long_arithmetic || (block_tokens < 64 && group_size > 1) ? Prefetch::kNextTile
                                                                  : Prefetch::kOff;
}
#else
Prefetch PrefetchRule(DType, int, int) { return Prefetch::kOff; }
#endif

bool CpuHas(Isa isa) {
  const IsaParts* parts = Find(isa);
  return parts != nullptr && parts->cpu_has();
}

AttendSegmentFn KernelOf(Isa isa, DType kv_dtype) {
  const IsaParts* parts = Find(isa);
  return parts != nullptr ? parts->kernel(kv_dtype) : nullptr;
}

StoreRowFn GetStoreRow(Isa isa) { return FindOrScalar(isa).store_row(); }

std::span<const StreamReadForm> StreamReadForms(Isa isa) {
  return FindOrScalar(isa).stream_reads();
}

}  // namespace tandem::attention
