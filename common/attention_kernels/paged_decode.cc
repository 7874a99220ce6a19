#include "common/attention_kernels/paged_decode.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/attention_kernels/isa/isa_kernels.h"

namespace tandem::attention {
namespace {

constexpr Isa kBestFirst[] = {Isa::kSve256,     Isa::kNeonBf16, Isa::kNeon, Isa::kAmxBf16,
                              Isa::kAvx512Bf16, Isa::kAvx512,   Isa::kAvx2, Isa::kScalar};

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmxBf16:
      return "amx_bf16";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonBf16:
      return "neon_bf16";
    case Isa::kSve256:
      return "sve256";
  }
  return "unknown";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (Isa isa : kBestFirst) {
    if (CpuHas(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

std::vector<std::string> IsaChoices() {
  std::vector<std::string> names = {"auto"};
  for (auto isa = std::rbegin(kBestFirst); isa != std::rend(kBestFirst); ++isa) {
    names.emplace_back(IsaName(*isa));
  }
  return names;
}

absl::StatusOr<Isa> ChooseIsa(std::string_view name) {
  if (name == "auto") {
    return SupportedIsas().front();
  }
  for (Isa isa : kBestFirst) {
    if (name != IsaName(isa)) {
      continue;
    }
    if (!CpuHas(isa)) {
      return absl::FailedPreconditionError(
          absl::StrCat("this CPU lacks the instruction set ", std::string(IsaName(isa))));
    }
    return isa;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown instruction set ", std::string(name),
                                                 "; allowed: ", absl::StrJoin(IsaChoices(), ", ")));
}

absl::StatusOr<AttendSegmentFn> GetAttendSegment(Isa isa, const kv::PoolGeometry& geometry) {
  if (absl::Status status = kv::ValidateGeometry(geometry); !status.ok()) {
    return status;
  }
  if (!CpuHas(isa)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this CPU lacks the instruction set ", std::string(IsaName(isa))));
  }
  AttendSegmentFn kernel = KernelOf(isa, geometry.dtype);
  if (kernel == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no attention kernel for KV dtype ", DTypeName(geometry.dtype)));
  }
  return kernel;
}

void MergeSegments(const float* const* parts, const float* log_sum_exps, int32_t count,
                   int32_t head_dim, float* out) {
  const float top = *std::max_element(log_sum_exps, log_sum_exps + count);
  float total = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    total += std::exp(log_sum_exps[i] - top);
  }
  for (int32_t i = 0; i < count; ++i) {
    const float weight = std::exp(log_sum_exps[i] - top) / total;
    for (int32_t d = 0; d < head_dim; ++d) {
      out[d] = i == 0 ? weight * parts[i][d] : out[d] + weight * parts[i][d];
    }
  }
}

}  // namespace tandem::attention
