#include "gpu_worker/model/decoder.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/linear.h"
#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::model {
namespace {

// Logits at a time: bounds their memory when every row of a prompt is asked for.
constexpr int64_t kLogitBytes = int64_t{32} << 20;
constexpr int64_t kMinLogitRows = 16;
constexpr int64_t kMaxLogitRows = 256;

}  // namespace

int32_t MaxLogitRows(int32_t vocab_size) {
  return static_cast<int32_t>(
      std::clamp(kLogitBytes / (int64_t{vocab_size} * 4), kMinLogitRows, kMaxLogitRows));
}

Decoder::Decoder(ops::OpContext* context, const ModelShape& shape)
    : context_(context), shape_(shape) {}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Load(ops::OpContext* context,
                                                       const model_files::ModelFiles& files,
                                                       const DecoderLimits& limits,
                                                       const TensorParallel& parallel) {
  TANDEM_RETURN_IF_ERROR(ValidateModelShape(files.shape()));
  TANDEM_RETURN_IF_ERROR(CheckTensorParallel(files.shape(), parallel.size));
  auto decoder =
      std::unique_ptr<Decoder>(new Decoder(context, RankShape(files.shape(), parallel.size)));
  decoder->parallel_ = parallel;
  TANDEM_ASSIGN_OR_RETURN(decoder->weights_,
                          LoadWeights(*context, files, parallel, limits.load_progress));
  TANDEM_ASSIGN_OR_RETURN(decoder->rope_,
                          RopeTable::Create(context->device(), files.shape().rope,
                                            files.shape().head_dim, limits.max_positions));
  TANDEM_RETURN_IF_ERROR(decoder->Allocate(limits));
  return decoder;
}

absl::Status Decoder::Allocate(const DecoderLimits& limits) {
  max_rows_ = limits.max_rows;
  // Both ranges of rows may be rounded up to a bucket, each by less than an eighth.
  const int64_t rows = limits.max_rows + limits.max_rows / 8 + 64;
  row_capacity_ = rows;
  max_logit_rows_ = MaxLogitRows(shape_.vocab_size);
  const int64_t logit_rows = ops::LinearRows(max_logit_rows_);
  const int64_t compute = DTypeBytes(context_->compute_dtype());
  const struct {
    std::unique_ptr<device::Buffer>* buffer;
    int64_t elements;
    int64_t bytes;
  } wanted[] = {
      {&hidden_, rows * shape_.hidden_size, 4},
      {&normed_, rows * shape_.hidden_size, compute},
      {&qkv_, rows * (shape_.q_size() + 2 * shape_.kv_size()), 4},
      {&attention_, rows * shape_.q_size(), compute},
      {&gate_up_, rows * 2 * shape_.intermediate_size, compute},
      {&activated_, rows * shape_.intermediate_size, compute},
      {&last_, logit_rows * shape_.hidden_size, compute},
      {&logits_, logit_rows * shape_.vocab_size, 4},
      {&rank_logits_, parallel_.size > 1 ? logit_rows * shape_.vocab_size / parallel_.size : 0, 4},
  };
  for (const auto& want : wanted) {
    if (want.elements == 0) {
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(
        *want.buffer, context_->device().Allocate(static_cast<size_t>(want.elements * want.bytes),
                                                  "the activations"));
  }
  return absl::OkStatus();
}

std::byte* Decoder::At(const device::Buffer& buffer, int64_t row, int64_t width,
                       DType dtype) const {
  return buffer.data() + row * width * DTypeBytes(dtype);
}

ops::QkvRows Decoder::qkv() const {
  return {qkv_->as<float>(), shape_.num_q_heads, shape_.num_kv_heads, shape_.head_dim};
}

void Decoder::Embed(RowRange rows, std::span<const int32_t> tokens) {
  TANDEM_CHECK(static_cast<int32_t>(tokens.size()) == rows.count);
  float* out = hidden_->as<float>() + int64_t{rows.first} * shape_.hidden_size;
  if (weights_.embedding != nullptr) {
    ops::Embed(*context_, {weights_.embedding->data(), tokens, shape_.hidden_size, out});
  } else {
    ops::GatherPackedRows(*context_, *weights_.output, tokens, out);
  }
}

void Decoder::Pre(int32_t layer, RowRange rows, std::span<const int32_t> positions) {
  TANDEM_CHECK(static_cast<int32_t>(positions.size()) == rows.count);
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const DType compute = context_->compute_dtype();
  const int64_t hidden = shape_.hidden_size;
  std::byte* normed = At(*normed_, rows.first, hidden, compute);
  std::byte* qkv = At(*qkv_, rows.first, weights.qkv->out_features(), DType::kFloat32);
  ops::RmsNormArgs norm;
  norm.in = hidden_->as<float>() + rows.first * hidden;
  norm.weight = weights.attention_norm.data();
  norm.eps = shape_.rms_norm_eps;
  norm.rows = rows.count;
  norm.width = hidden;
  norm.out = normed;
  ops::RmsNorm(*context_, norm);
  ops::Linear(*context_, {weights.qkv.get(), normed, qkv, rows.count, DType::kFloat32, false});
  ops::RopeArgs rope;
  rope.qkv = reinterpret_cast<float*>(qkv);
  rope.positions = positions;
  rope.cos = rope_.cos();
  rope.sin = rope_.sin();
  rope.q_norm = weights.q_norm.empty() ? nullptr : weights.q_norm.data();
  rope.k_norm = weights.k_norm.empty() ? nullptr : weights.k_norm.data();
  rope.eps = shape_.rms_norm_eps;
  rope.num_q_heads = shape_.num_q_heads;
  rope.num_kv_heads = shape_.num_kv_heads;
  rope.head_dim = shape_.head_dim;
  ops::Rope(*context_, rope);
}

void Decoder::Post(int32_t layer, RowRange rows) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const DType compute = context_->compute_dtype();
  const int64_t hidden = shape_.hidden_size;
  std::byte* residual = At(*hidden_, rows.first, hidden, DType::kFloat32);
  std::byte* normed = At(*normed_, rows.first, hidden, compute);
  std::byte* gate_up = At(*gate_up_, rows.first, 2 * int64_t{shape_.intermediate_size}, compute);
  std::byte* activated = At(*activated_, rows.first, shape_.intermediate_size, compute);
  AddToResidual(*weights.attention_output, At(*attention_, rows.first, shape_.q_size(), compute),
                rows);
  ops::RmsNormArgs norm;
  norm.in = reinterpret_cast<const float*>(residual);
  norm.weight = weights.mlp_norm.data();
  norm.eps = shape_.rms_norm_eps;
  norm.rows = rows.count;
  norm.width = hidden;
  norm.out = normed;
  ops::RmsNorm(*context_, norm);
  ops::Linear(*context_, {weights.gate_up.get(), normed, gate_up, rows.count, compute, false});
  ops::SiluMul(*context_, {gate_up, rows.count, shape_.intermediate_size, activated});
  AddToResidual(*weights.down, activated, rows);
}

// The first of several devices adds its part to the residual stream, the others put theirs in its
// place: the sum of all is the new residual stream on each.
void Decoder::AddToResidual(const ops::PackedLinear& weights, const std::byte* in, RowRange rows) {
  std::byte* residual = At(*hidden_, rows.first, shape_.hidden_size, DType::kFloat32);
  ops::Linear(*context_,
              {&weights, in, residual, rows.count, DType::kFloat32, parallel_.rank == 0});
  if (communicator_ != nullptr) {
    communicator_->AllReduceSum(context_->stream(), reinterpret_cast<float*>(residual),
                                int64_t{rows.count} * shape_.hidden_size);
  }
}

void Decoder::ClearAttention(int32_t count) {
  const auto bytes =
      static_cast<size_t>(count * shape_.q_size() * DTypeBytes(context_->compute_dtype()));
  context_->stream().Clear(attention_->data(), bytes);
}

void Decoder::Logits(std::span<const int32_t> row_ids) {
  TANDEM_CHECK(static_cast<int32_t>(row_ids.size()) <= max_logit_rows_);
  const auto rows = static_cast<int64_t>(row_ids.size());
  ops::RmsNormArgs norm;
  norm.in = hidden_->as<float>();
  norm.weight = weights_.output_norm.data();
  norm.eps = shape_.rms_norm_eps;
  norm.rows = rows;
  norm.width = shape_.hidden_size;
  norm.row_ids = row_ids.data();
  norm.out = last_->data();
  ops::RmsNorm(*context_, norm);
  device::Buffer& logits = parallel_.size > 1 ? *rank_logits_ : *logits_;
  ops::Linear(*context_,
              {weights_.output.get(), last_->data(), logits.data(), rows, DType::kFloat32, false});
  if (communicator_ != nullptr) {
    communicator_->AllGatherRows(context_->stream(), rank_logits_->as<float>(), rows,
                                 shape_.vocab_size / parallel_.size, logits_->as<float>());
  }
}

}  // namespace tandem::gpu_worker::model
