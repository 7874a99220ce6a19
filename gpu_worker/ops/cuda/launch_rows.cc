#include <cstdint>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda/kernels.h"
#include "gpu_worker/ops/cuda/launch.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;
constexpr uint32_t kExchangeThreads = 128;
constexpr uint32_t kArgmaxThreads = 512;
constexpr uint32_t kSampleThreads = 512;
constexpr int64_t kMaxVocab = int64_t{1} << 22;

constexpr KernelNames kEmbed = {"embed_f32", "embed_bf16", "embed_f16"};
constexpr KernelNames kRmsNorm = {"rms_norm_f32", "rms_norm_bf16", "rms_norm_f16"};
constexpr KernelNames kSiluMul = {"silu_mul_f32", "silu_mul_bf16", "silu_mul_f16"};
constexpr KernelNames kSendRows = {"send_rows_f32", "send_rows_bf16", "send_rows_f16"};
constexpr KernelNames kJoinRows = {"join_rows_32", "join_rows_16", "join_rows_16"};

}  // namespace

absl::Status Embed(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                   const EmbedParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("width", params.width, 1, kMaxGridX));
  return Launcher{launcher, stream}.Run(kEmbed.Of(compute), Shape(params.rows, 1, 1, kRowThreads),
                                        params);
}

absl::Status RmsNorm(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                     const RmsNormParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("width", params.width, 1, kMaxGridX));
  return Launcher{launcher, stream}.Run(kRmsNorm.Of(compute), Shape(params.rows, 1, 1, kRowThreads),
                                        params);
}

absl::Status Rope(KernelLauncher& launcher, StreamHandle stream, const RopeParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("head_dim", params.head_dim, 2, 256));
  TANDEM_RETURN_IF_ERROR(MultipleOf("head_dim", params.head_dim, 2));
  const int64_t heads = int64_t{params.num_q_heads} + params.num_kv_heads;
  TANDEM_RETURN_IF_ERROR(InRange("heads", heads, 1, kMaxGridYz));
  const char* kernel = params.q_norm != nullptr ? "rope_norm" : "rope";
  return Launcher{launcher, stream}.Run(kernel, Shape(params.rows, heads, 1, 32), params);
}

absl::Status SiluMul(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                     const SiluMulParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  constexpr int64_t kColumns = 4 * kRowThreads;
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("width", params.width, 1, kColumns * kMaxGridYz));
  const int64_t pieces = (params.width + kColumns - 1) / kColumns;
  return Launcher{launcher, stream}.Run(kSiluMul.Of(compute),
                                        Shape(params.rows, pieces, 1, kRowThreads), params);
}

absl::Status AddBias(KernelLauncher& launcher, StreamHandle stream, const AddBiasParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  return Launcher{launcher, stream}.Run("add_bias", Shape(params.rows, 1, 1, kRowThreads), params);
}

absl::Status SendRows(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                      const SendRowsParams& params) {
  if (params.num_rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("num_rows", params.num_rows, 1, kMaxGridX));
  const struct {
    const char* field;
    int32_t value;
  } fields[] = {{"stride", params.stride},     {"q_column", params.q_column},
                {"k_column", params.k_column}, {"v_column", params.v_column},
                {"q_width", params.q_width},   {"kv_width", params.kv_width},
                {"q_stride", params.q_stride}, {"kv_stride", params.kv_stride}};
  for (const auto& field : fields) {
    TANDEM_RETURN_IF_ERROR(MultipleOf(field.field, field.value, 4));
  }
  return Launcher{launcher, stream}.Run(kSendRows.Of(compute),
                                        Shape(params.num_rows, 1, 1, kExchangeThreads), params);
}

absl::Status JoinRows(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                      const JoinRowsParams& params) {
  if (params.num_rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("num_rows", params.num_rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(MultipleOf("from_width", params.from_width, 8));
  TANDEM_RETURN_IF_ERROR(MultipleOf("from_stride", params.from_stride, 8));
  TANDEM_RETURN_IF_ERROR(MultipleOf("out_width", params.out_width, 8));
  TANDEM_RETURN_IF_ERROR(MultipleOf("first_column", params.first_column, 8));
  return Launcher{launcher, stream}.Run(kJoinRows.Of(compute),
                                        Shape(params.num_rows, 1, 1, kExchangeThreads), params);
}

absl::Status SignalWord(KernelLauncher& launcher, StreamHandle stream, const WordParams& params) {
  return Launcher{launcher, stream}.Run("signal_word", Shape(1, 1, 1, 1), params);
}

absl::Status WaitWord(KernelLauncher& launcher, StreamHandle stream, const WordParams& params) {
  return Launcher{launcher, stream}.Run("wait_word", Shape(1, 1, 1, 1), params);
}

namespace {

absl::Status CheckLogitRows(const LogitRowsParams& rows) {
  TANDEM_RETURN_IF_ERROR(InRange("rows", rows.count, 1, kMaxGridX));
  return InRange("vocab", rows.vocab, 1, kMaxVocab);
}

}  // namespace

absl::Status Sample(KernelLauncher& launcher, StreamHandle stream, const SampleParams& params) {
  if (params.rows.count == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckLogitRows(params.rows));
  return Launcher{launcher, stream}.Run("sample", Shape(params.rows.count, 1, 1, kSampleThreads),
                                        params);
}

absl::Status Logprobs(KernelLauncher& launcher, StreamHandle stream, const LogprobsParams& params) {
  if (params.rows.count == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckLogitRows(params.rows));
  TANDEM_RETURN_IF_ERROR(InRange("max_top", params.max_top, 0, 1024));
  return Launcher{launcher, stream}.Run("logprobs", Shape(params.rows.count, 1, 1, kSampleThreads),
                                        params);
}

absl::Status Argmax(KernelLauncher& launcher, StreamHandle stream, const ArgmaxParams& params) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(InRange("rows", params.rows, 1, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("vocab", params.vocab, 1, kMaxGridX));
  return Launcher{launcher, stream}.Run("argmax", Shape(params.rows, 1, 1, kArgmaxThreads), params);
}

}  // namespace tandem::gpu_worker::ops::cuda
