#include "gpu_worker/ops/linear_host.h"

#include <algorithm>
#include <cstring>

#include "common/base/bfloat16.h"
#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Rows read and packed at a time; a multiple of every block size that oneDNN uses.
constexpr int64_t kPanelRows = 64;

void PackPanel(const PackedFormat& format, int64_t first, int64_t count, const float* rows,
               std::byte* weights) {
  const int64_t* k_offset = format.k_offset.data();
  for (int64_t row = 0; row < count; ++row) {
    const float* values = rows + row * format.k;
    const int64_t base = format.n_offset[static_cast<size_t>(first + row)];
    if (format.dtype == DType::kFloat32) {
      float* out = reinterpret_cast<float*>(weights) + base;
      for (int64_t k = 0; k < format.k; ++k) {
        out[k_offset[k]] = values[k];
      }
    } else {
      uint16_t* out = reinterpret_cast<uint16_t*>(weights) + base;
      for (int64_t k = 0; k < format.k; ++k) {
        out[k_offset[k]] = base::FloatToBFloat16(values[k]);
      }
    }
  }
}

}  // namespace

absl::Status PackLinear(OpContext& /*context*/, const LinearSource& source, PackedLinear& packed) {
  std::byte* weights = packed.weights->data();
  const auto bytes = static_cast<int64_t>(packed.format.bytes);
  constexpr int64_t kClearBytes = 1 << 20;
#pragma omp parallel
  {
    // Padding must be zero; the rest is touched here first anyway.
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < bytes; begin += kClearBytes) {
      std::memset(weights + begin, 0, static_cast<size_t>(std::min(kClearBytes, bytes - begin)));
    }
    std::vector<float> rows(static_cast<size_t>(kPanelRows * source.in_features));
#pragma omp for schedule(dynamic)
    for (int64_t first = 0; first < source.out_features; first += kPanelRows) {
      const int64_t count = std::min(kPanelRows, source.out_features - first);
      source.read(first, count, rows.data());
      PackPanel(packed.format, first, count, rows.data(), weights);
    }
  }
  return absl::OkStatus();
}

absl::Status ConvertTable(OpContext& context, const ConvertTableArgs& args) {
  const Kernels& kernels = context.workspace().kernels();
  const bool wide = context.compute_dtype() == DType::kFloat32;
#pragma omp parallel
  {
    std::vector<float> rows(static_cast<size_t>(kPanelRows * args.cols));
#pragma omp for schedule(dynamic)
    for (int64_t first = 0; first < args.rows; first += kPanelRows) {
      const int64_t count = std::min(kPanelRows, args.rows - first);
      if (wide) {
        args.read(first, count, reinterpret_cast<float*>(args.out) + first * args.cols);
      } else {
        args.read(first, count, rows.data());
        kernels.float_to_bf16(rows.data(), count * args.cols,
                              reinterpret_cast<uint16_t*>(args.out) + first * args.cols);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Linear(OpContext& context, const LinearArgs& args) {
  MatmulCall call;
  call.format = &args.weights->format;
  call.weights = args.weights->weights->data();
  call.bias = args.weights->bias.empty() ? nullptr : args.weights->bias.data();
  call.in = args.in;
  call.out = args.out;
  call.rows = args.rows;
  call.out_dtype = args.out_dtype;
  call.accumulate = args.accumulate;
  context.workspace().matmuls().Run(call);
  return absl::OkStatus();
}

absl::Status GatherPackedRows(OpContext& /*context*/, const PackedLinear& weights,
                              std::span<const int32_t> ids, float* out) {
  const PackedFormat& format = weights.format;
  const auto count = static_cast<int64_t>(ids.size());
#pragma omp parallel for schedule(static) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t base = format.n_offset[static_cast<size_t>(ids[static_cast<size_t>(i)])];
    float* row = out + i * format.k;
    if (format.dtype == DType::kFloat32) {
      const float* from = weights.weights->as<float>() + base;
      for (int64_t k = 0; k < format.k; ++k) {
        row[k] = from[format.k_offset[static_cast<size_t>(k)]];
      }
    } else {
      const uint16_t* from = weights.weights->as<uint16_t>() + base;
      for (int64_t k = 0; k < format.k; ++k) {
        row[k] = base::BFloat16ToFloat(from[format.k_offset[static_cast<size_t>(k)]]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
