#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_shape/model_shape.h"

// What a GPU, its link and its host can do: the numbers behind the simulator and the paced device.
// Plain values and pure functions of them; shared by the planning and the running side, so that
// both predict the same times.
namespace tandem::gpu_worker {

struct DeviceProfile {
  std::string name;

  double gpu_memory_gb = 0;  // that a process can allocate, 1e9 bytes
  double gpu_memory_gb_per_s = 0;
  double gpu_memory_efficiency = 0;     // share of it that streaming weights reaches
  double gpu_attention_efficiency = 0;  // share of it that paged decode attention reaches
  double gpu_tflops_float16 = 0;        // dense, no sparsity; 0: the device lacks the type
  double gpu_tflops_bfloat16 = 0;
  double gpu_tflops_float32 = 0;
  double gpu_tflops_int8 = 0;
  double gpu_compute_efficiency = 0;            // share of them that large matmuls reach
  double gpu_attention_compute_efficiency = 0;  // share of them that prefill attention reaches
  double gpu_eager_launch_us = 0;  // host time to launch a kernel by itself (hidden by longer ones)
  double gpu_graph_launch_us = 0;  // gap between two kernels of a captured graph
  double gpu_all_reduce_gb_per_s =
      0;  // one direction, to the other GPUs of a tensor parallel group
  double gpu_all_reduce_latency_us = 0;

  double link_gb_per_s = 0;  // host and GPU, one direction
  double link_efficiency = 0;
  double link_latency_us = 0;  // of one copy

  double host_memory_gb_per_s = 0;
  double host_attention_efficiency = 0;  // share of it that CPU decode attention reaches
  double host_cores = 0;
  double host_attention_gflops_per_core = 0;
  double host_exchange_us = 0;  // post and done of one layer without any work
};

// FLOP/s in FLOP per us; 0 where the device lacks the type. int8 stands for any 8-bit type.
double PeakFlopsPerUs(const DeviceProfile& profile, DType dtype);

// A matmul [rows, in] x [in, out], weights and activations of `dtype`.
struct MatmulSize {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  DType dtype = DType::kFloat16;
};

// Microseconds of one operation as a node of a captured graph, its launch included; 0 when there is
// nothing to do.
// The longer of moving weights and activations and of computing.
double MatmulUs(const DeviceProfile& profile, const MatmulSize& size);
// Norms, rotation, activation, embedding: `bytes` read and written.
double ElementwiseUs(const DeviceProfile& profile, double bytes);
double DecodeAttentionUs(const DeviceProfile& profile, double kv_bytes);
double PrefillAttentionUs(const DeviceProfile& profile, double flops, double kv_bytes, DType dtype);
// One copy between host and GPU, its latency included.
double LinkUs(const DeviceProfile& profile, double bytes);
// Sum of `bytes` over `gpus` GPUs, the result on each (ring).
double AllReduceUs(const DeviceProfile& profile, double bytes, int32_t gpus);

// KV bytes per us that CPU decode attention reaches; `flops_per_byte` is 4 q_size / KV bytes of a
// token.
double CpuAttentionBytesPerUs(const DeviceProfile& profile, double flops_per_byte);

// Reads a profile from YAML. `extends: NAME` takes what is not given from a built-in profile.
// InvalidArgument names the field, its line and what is allowed: unknown, missing and repeated
// fields, values out of range.
absl::StatusOr<DeviceProfile> ParseDeviceProfile(std::string_view yaml);
// NotFound lists the names.
absl::StatusOr<DeviceProfile> BuiltInDeviceProfile(std::string_view name);
std::vector<std::string> BuiltInDeviceProfileNames();
// A built-in name, or the path of a file that ends in .yaml or .yml. Errors name it.
absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name_or_path);

}  // namespace tandem::gpu_worker
