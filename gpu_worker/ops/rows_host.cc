#include "gpu_worker/ops/rows_host.h"

#include <cstring>

#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Below this many elements a parallel region costs more than it saves (about 1 us on 2 threads).
constexpr int64_t kParallelElements = 4096;

}  // namespace

absl::Status Embed(OpContext& context, const EmbedArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const bool wide = context.compute_dtype() == DType::kFloat32;
  const auto rows = static_cast<int64_t>(args.ids.size());
#pragma omp parallel for schedule(static) if (rows * args.width > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = args.ids[static_cast<size_t>(row)] * args.width;
    float* out = args.out + row * args.width;
    if (wide) {
      std::memcpy(out, reinterpret_cast<const float*>(args.table) + first,
                  static_cast<size_t>(args.width) * sizeof(float));
    } else {
      kernels.bf16_to_float(reinterpret_cast<const uint16_t*>(args.table) + first, args.width, out);
    }
  }
  return absl::OkStatus();
}

absl::Status RmsNorm(OpContext& context, const RmsNormArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const bool wide = context.compute_dtype() == DType::kFloat32;
#pragma omp parallel for schedule(static) if (args.rows * args.width > kParallelElements)
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* in = args.in + (args.row_ids != nullptr ? args.row_ids[row] : row) * args.width;
    if (wide) {
      kernels.rms_norm_f32(in, args.weight, args.width, args.eps,
                           reinterpret_cast<float*>(args.out) + row * args.width);
    } else {
      kernels.rms_norm_bf16(in, args.weight, args.width, args.eps,
                            reinterpret_cast<uint16_t*>(args.out) + row * args.width);
    }
  }
  return absl::OkStatus();
}

absl::Status Rope(OpContext& context, const RopeArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const int64_t half = args.head_dim / 2;
  const int64_t heads = args.num_q_heads + args.num_kv_heads;
  const int64_t stride = (heads + args.num_kv_heads) * args.head_dim;
  const auto rows = static_cast<int64_t>(args.positions.size());
#pragma omp parallel for schedule(static) if (rows * stride > kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t line = args.positions[static_cast<size_t>(row)] * half;
    for (int64_t head = 0; head < heads; ++head) {
      float* values = args.qkv + row * stride + head * args.head_dim;
      const float* norm = head < args.num_q_heads ? args.q_norm : args.k_norm;
      if (norm != nullptr) {
        kernels.rms_norm_f32(values, norm, args.head_dim, args.eps, values);
      }
      kernels.rope(values, args.cos + line, args.sin + line, half);
    }
  }
  return absl::OkStatus();
}

absl::Status SiluMul(OpContext& context, const SiluMulArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const bool wide = context.compute_dtype() == DType::kFloat32;
#pragma omp parallel for schedule(static) if (args.rows * args.width > kParallelElements)
  for (int64_t row = 0; row < args.rows; ++row) {
    if (wide) {
      const float* gate = reinterpret_cast<const float*>(args.gate_up) + row * 2 * args.width;
      kernels.silu_mul_f32(gate, gate + args.width, args.width,
                           reinterpret_cast<float*>(args.out) + row * args.width);
    } else {
      const uint16_t* gate = reinterpret_cast<const uint16_t*>(args.gate_up) + row * 2 * args.width;
      kernels.silu_mul_bf16(gate, gate + args.width, args.width,
                            reinterpret_cast<uint16_t*>(args.out) + row * args.width);
    }
  }
  return absl::OkStatus();
}

void PackRows(const OpContext& context, const PackRowsArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const bool wide = context.compute_dtype() == DType::kFloat32;
  for (size_t i = 0; i < args.row_ids.size(); ++i) {
    const float* in = args.in + args.row_ids[i] * args.in_width + args.first_column;
    const size_t first = i * static_cast<size_t>(args.width);
    if (wide) {
      std::memcpy(reinterpret_cast<float*>(args.out) + first, in,
                  static_cast<size_t>(args.width) * sizeof(float));
    } else {
      kernels.float_to_bf16(in, args.width, reinterpret_cast<uint16_t*>(args.out) + first);
    }
  }
}

}  // namespace tandem::gpu_worker::ops::host
