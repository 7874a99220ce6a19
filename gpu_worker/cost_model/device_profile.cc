#include "gpu_worker/cost_model/device_profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/base/yaml_scalars.h"
#include "gpu_worker/cost_model/built_in_profiles.h"

namespace tandem::gpu_worker {
namespace {

constexpr double kGigaPerUs = 1e3;  // 1e9 per second is 1e3 per microsecond
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxExtends = 4;

struct Field {
  const char* path;
  double DeviceProfile::*member;
  double min;
  double max;
};

// A share is at most 1; rates and sizes reach from toys to what is not built yet.
constexpr Field kFields[] = {
    {"gpu.memory_gb", &DeviceProfile::gpu_memory_gb, 1e-3, 1e5},
    {"gpu.memory_gb_per_s", &DeviceProfile::gpu_memory_gb_per_s, 1e-3, 1e6},
    {"gpu.memory_efficiency", &DeviceProfile::gpu_memory_efficiency, 0.01, 1},
    {"gpu.attention_efficiency", &DeviceProfile::gpu_attention_efficiency, 0.01, 1},
    {"gpu.tflops.float16", &DeviceProfile::gpu_tflops_float16, 0, 1e6},
    {"gpu.tflops.bfloat16", &DeviceProfile::gpu_tflops_bfloat16, 0, 1e6},
    {"gpu.tflops.float32", &DeviceProfile::gpu_tflops_float32, 0, 1e6},
    {"gpu.tflops.int8", &DeviceProfile::gpu_tflops_int8, 0, 1e6},
    {"gpu.compute_efficiency", &DeviceProfile::gpu_compute_efficiency, 0.01, 1},
    {"gpu.attention_compute_efficiency", &DeviceProfile::gpu_attention_compute_efficiency, 0.01, 1},
    {"gpu.eager_launch_us", &DeviceProfile::gpu_eager_launch_us, 0, 1e4},
    {"gpu.graph_launch_us", &DeviceProfile::gpu_graph_launch_us, 0, 1e4},
    {"gpu.all_reduce_gb_per_s", &DeviceProfile::gpu_all_reduce_gb_per_s, 1e-3, 1e5},
    {"gpu.all_reduce_latency_us", &DeviceProfile::gpu_all_reduce_latency_us, 0, 1e5},
    {"link.gb_per_s", &DeviceProfile::link_gb_per_s, 1e-3, 1e5},
    {"link.efficiency", &DeviceProfile::link_efficiency, 0.01, 1},
    {"link.latency_us", &DeviceProfile::link_latency_us, 0, 1e5},
    {"host.memory_gb_per_s", &DeviceProfile::host_memory_gb_per_s, 1e-3, 1e5},
    {"host.attention_efficiency", &DeviceProfile::host_attention_efficiency, 0.01, 1},
    {"host.cores", &DeviceProfile::host_cores, 1, 1e5},
    {"host.attention_gflops_per_core", &DeviceProfile::host_attention_gflops_per_core, 1e-3, 1e5},
    {"host.exchange_us", &DeviceProfile::host_exchange_us, 0, 1e5},
};

using Values = std::map<std::string, base::YamlScalar>;

std::string Where(const base::YamlScalar& scalar) {
  return absl::StrCat("line ", scalar.line, ": ", scalar.path);
}

absl::StatusOr<double> Number(const Field& field, const base::YamlScalar& scalar) {
  double value = 0;
  if (!absl::SimpleAtod(scalar.text, &value) || !(value >= field.min && value <= field.max)) {
    return absl::InvalidArgumentError(absl::StrCat(Where(scalar), " is '", scalar.text,
                                                   "'; allowed: a number from ", field.min, " to ",
                                                   field.max));
  }
  return value;
}

// Reading `bytes` in large runs.
double StreamUs(const DeviceProfile& profile, double bytes) {
  return bytes / (profile.gpu_memory_gb_per_s * profile.gpu_memory_efficiency * kGigaPerUs);
}

// Reading the blocks of a paged KV cache.
double AttentionReadUs(const DeviceProfile& profile, double bytes) {
  return bytes / (profile.gpu_memory_gb_per_s * profile.gpu_attention_efficiency * kGigaPerUs);
}

absl::StatusOr<DeviceProfile> Parse(std::string_view yaml, int depth);

absl::StatusOr<DeviceProfile> Base(const Values& values, int depth) {
  const auto extends = values.find("extends");
  if (extends == values.end()) {
    return DeviceProfile();
  }
  const std::optional<std::string_view> text = BuiltInProfileText(extends->second.text);
  if (!text || depth >= kMaxExtends) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(extends->second), " is '", extends->second.text,
                     "'; allowed: ", absl::StrJoin(BuiltInDeviceProfileNames(), ", ")));
  }
  return Parse(*text, depth + 1);
}

absl::StatusOr<DeviceProfile> Parse(std::string_view yaml, int depth) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<base::YamlScalar> scalars, base::ReadYamlScalars(yaml));
  Values values;
  for (const base::YamlScalar& scalar : scalars) {
    const auto is_field = [&scalar](const Field& field) { return scalar.path == field.path; };
    if (scalar.path != "name" && scalar.path != "extends" &&
        std::none_of(std::begin(kFields), std::end(kFields), is_field)) {
      std::vector<std::string> allowed = {"name", "extends"};
      for (const Field& field : kFields) {
        allowed.emplace_back(field.path);
      }
      return absl::InvalidArgumentError(absl::StrCat(
          Where(scalar), " is no field of a profile; allowed: ", absl::StrJoin(allowed, ", ")));
    }
    values[scalar.path] = scalar;
  }
  TANDEM_ASSIGN_OR_RETURN(DeviceProfile profile, Base(values, depth));
  const bool is_complete = values.contains("extends");
  const auto name = values.find("name");
  if (name == values.end() || name->second.text.empty()) {
    return absl::InvalidArgumentError("name is missing; allowed: a text");
  }
  profile.name = name->second.text;
  for (const Field& field : kFields) {
    const auto value = values.find(field.path);
    if (value != values.end()) {
      TANDEM_ASSIGN_OR_RETURN(profile.*field.member, Number(field, value->second));
    } else if (!is_complete) {
      return absl::InvalidArgumentError(absl::StrCat(
          field.path, " is missing; allowed: a number from ", field.min, " to ", field.max));
    }
  }
  if (PeakFlopsPerUs(profile, DType::kFloat16) <= 0 &&
      PeakFlopsPerUs(profile, DType::kBFloat16) <= 0) {
    return absl::InvalidArgumentError(
        "gpu.tflops.float16 and gpu.tflops.bfloat16 are both 0; one must be more");
  }
  return profile;
}

}  // namespace

double PeakFlopsPerUs(const DeviceProfile& profile, DType dtype) {
  constexpr double kTeraPerUs = 1e6;
  switch (dtype) {
    case DType::kFloat32:
      return profile.gpu_tflops_float32 * kTeraPerUs;
    case DType::kBFloat16:
      return profile.gpu_tflops_bfloat16 * kTeraPerUs;
    case DType::kFloat16:
      return profile.gpu_tflops_float16 * kTeraPerUs;
    case DType::kInt8:
    case DType::kFloat8E4M3:
      return profile.gpu_tflops_int8 * kTeraPerUs;
  }
  return 0;
}

double MatmulUs(const DeviceProfile& profile, const MatmulSize& size) {
  const auto rows = static_cast<double>(size.rows);
  const double weights = static_cast<double>(size.in) * static_cast<double>(size.out);
  if (rows <= 0 || weights <= 0) {
    return 0;
  }
  const double bytes =
      DTypeBytes(size.dtype) * (weights + rows * static_cast<double>(size.in + size.out));
  const double rate = PeakFlopsPerUs(profile, size.dtype) * profile.gpu_compute_efficiency;
  const double compute_us = rate > 0 ? 2.0 * rows * weights / rate : 0;
  return profile.gpu_graph_launch_us + std::max(StreamUs(profile, bytes), compute_us);
}

double ElementwiseUs(const DeviceProfile& profile, double bytes) {
  return bytes <= 0 ? 0 : profile.gpu_graph_launch_us + StreamUs(profile, bytes);
}

double DecodeAttentionUs(const DeviceProfile& profile, double kv_bytes) {
  return kv_bytes <= 0 ? 0 : profile.gpu_graph_launch_us + AttentionReadUs(profile, kv_bytes);
}

double PrefillAttentionUs(const DeviceProfile& profile, double flops, double kv_bytes,
                          DType dtype) {
  const double rate = PeakFlopsPerUs(profile, dtype) * profile.gpu_attention_compute_efficiency;
  return kv_bytes <= 0 ? 0
                       : profile.gpu_graph_launch_us + std::max(AttentionReadUs(profile, kv_bytes),
                                                                rate > 0 ? flops / rate : 0);
}

double LinkUs(const DeviceProfile& profile, double bytes) {
  return bytes <= 0 ? 0
                    : profile.link_latency_us +
                          bytes / (profile.link_gb_per_s * profile.link_efficiency * kGigaPerUs);
}

double AllReduceUs(const DeviceProfile& profile, double bytes, int32_t gpus) {
  if (gpus <= 1 || bytes <= 0) {
    return 0;
  }
  const double passed_on = 2.0 * (gpus - 1) / gpus * bytes;
  return profile.gpu_all_reduce_latency_us +
         passed_on / (profile.gpu_all_reduce_gb_per_s * kGigaPerUs);
}

double CpuAttentionBytesPerUs(const DeviceProfile& profile, double flops_per_byte) {
  const double memory =
      profile.host_memory_gb_per_s * profile.host_attention_efficiency * kGigaPerUs;
  const double compute = profile.host_cores * profile.host_attention_gflops_per_core * kGigaPerUs;
  return flops_per_byte > 0 ? std::min(memory, compute / flops_per_byte) : memory;
}

absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view yaml) { return Parse(yaml, 0); }

absl::StatusOr<DeviceProfile> BuiltInDeviceProfile(std::string_view name) {
  const std::optional<std::string_view> text = BuiltInProfileText(name);
  if (!text) {
    return absl::NotFoundError(base::StrCat(
        "no profile '", name, "'; allowed: ", absl::StrJoin(BuiltInDeviceProfileNames(), ", "),
        ", or the path of a .yaml file"));
  }
  return Parse(*text, 0);
}

std::vector<std::string> BuiltInDeviceProfileNames() {
  std::vector<std::string> names;
  for (const BuiltInProfile& profile : BuiltInProfiles()) {
    names.emplace_back(profile.name);
  }
  return names;
}

absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name_or_path) {
  if (!absl::EndsWith(name_or_path, ".yaml") && !absl::EndsWith(name_or_path, ".yml")) {
    return BuiltInDeviceProfile(name_or_path);
  }
  absl::StatusOr<std::string> text = base::ReadFileTail(name_or_path, 0, kMaxFileBytes + 1);
  absl::StatusOr<DeviceProfile> profile =
      text.ok() ? ParseDeviceProfile(*text) : absl::StatusOr<DeviceProfile>(text.status());
  if (!profile.ok()) {
    return absl::Status(profile.status().code(),
                        absl::StrCat(name_or_path, ": ", profile.status().message()));
  }
  return profile;
}

}  // namespace tandem::gpu_worker
