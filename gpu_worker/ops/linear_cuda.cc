#include "gpu_worker/ops/linear_cuda.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/bfloat16.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/rows_cuda.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int64_t kUploadTimeoutUs = int64_t{600} * 1'000'000;

// To nearest, ties to even; too large values become infinity.
uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) {
    return sign | 0x7e00u;
  }
  if (magnitude >= 0x477ff000u) {
    return sign | 0x7c00u;
  }
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

void Convert(DType dtype, const float* from, int64_t count, std::byte* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = dtype == DType::kBFloat16 ? base::FloatToBFloat16(from[i]) : FloatToHalf(from[i]);
  }
}

// Reads rows [first, first + count) with the calling thread's team.
void ReadPart(DType dtype, const ConvertTableArgs& args, int64_t first, int64_t count,
              std::byte* to) {
  constexpr int64_t kRowsAtATime = 64;
  const int64_t row_bytes = args.cols * DTypeBytes(dtype);
#pragma omp parallel
  {
    std::vector<float> rows(static_cast<size_t>(kRowsAtATime * args.cols));
#pragma omp for schedule(dynamic)
    for (int64_t begin = 0; begin < count; begin += kRowsAtATime) {
      const int64_t here = std::min(kRowsAtATime, count - begin);
      args.read(first + begin, here, rows.data());
      Convert(dtype, rows.data(), here * args.cols, to + begin * row_bytes);
    }
  }
}

absl::Status UploadTable(OpContext& context, const ConvertTableArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  const DType dtype = context.compute_dtype();
  const int64_t row_bytes = args.cols * DTypeBytes(dtype);
  WeightStaging& staging = context.cuda().weight_staging();
  const int64_t rows_at_a_time =
      std::max<int64_t>(1, static_cast<int64_t>(WeightStaging::kBytes) / row_bytes);
  for (int64_t first = 0; first < args.rows; first += rows_at_a_time) {
    const int64_t count = std::min(rows_at_a_time, args.rows - first);
    const auto bytes = static_cast<size_t>(count * row_bytes);
    TANDEM_ASSIGN_OR_RETURN(std::byte * part,
                            staging.Next(context.device(), bytes, kUploadTimeoutUs));
    ReadPart(dtype, args, first, count, part);
    stream.CopyFromHost(args.out + first * row_bytes, part, bytes);
    staging.Sent(stream);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackLinear(OpContext& context, const LinearSource& source, PackedLinear& packed) {
  packed.format.dtype = context.compute_dtype();
  packed.format.n = source.out_features;
  packed.format.k = source.in_features;
  packed.format.bytes = static_cast<size_t>(source.out_features * source.in_features *
                                            DTypeBytes(context.compute_dtype()));
  TANDEM_ASSIGN_OR_RETURN(packed.weights,
                          context.device().Allocate(packed.format.bytes, source.what));
  if (!source.bias.empty()) {
    const size_t bytes = source.bias.size() * sizeof(float);
    TANDEM_ASSIGN_OR_RETURN(packed.device_bias, context.device().Allocate(bytes, source.what));
    TANDEM_RETURN_IF_ERROR(
        context.device().Upload(packed.device_bias->data(), source.bias.data(), bytes));
  }
  return UploadTable(
      context, {source.read, source.out_features, source.in_features, packed.weights->data()});
}

void ConvertTable(OpContext& context, const ConvertTableArgs& args) {
  AsCuda(context.stream()).Fail(UploadTable(context, args));
}

void Linear(OpContext& context, const LinearArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  device::CudaMatmulArgs matmul;
  matmul.weights = args.weights->weights->data();
  matmul.in = args.in;
  matmul.out = args.out;
  if (args.weights->device_bias != nullptr) {
    matmul.bias = args.weights->device_bias->as<float>();
  }
  matmul.rows = args.rows;
  matmul.n = args.weights->out_features();
  matmul.k = args.weights->in_features();
  matmul.in_dtype = context.compute_dtype();
  matmul.out_dtype = args.out_dtype;
  matmul.accumulate = args.accumulate;
  const absl::StatusOr<bool> complete = context.cuda().matmul().Run(stream, matmul);
  stream.Fail(complete.status());
  if (complete.ok() && !*complete) {
    AddBiasParams bias;
    bias.out = reinterpret_cast<float*>(args.out);
    bias.bias = matmul.bias;
    bias.rows = static_cast<int32_t>(args.rows);
    bias.width = static_cast<int32_t>(matmul.n);
    stream.Fail(AddBias(context.cuda().launcher(), stream.handle(), bias));
  }
}

void GatherPackedRows(OpContext& context, const PackedLinear& weights, std::span<const int32_t> ids,
                      float* out) {
  cuda::Embed(context, {weights.weights->data(), ids, weights.in_features(), out});
}

}  // namespace tandem::gpu_worker::ops::cuda
