#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/device/communicator.h"
#include "gpu_worker/model/rope_table.h"
#include "gpu_worker/model/tensor_parallel.h"
#include "gpu_worker/model/weights.h"
#include "gpu_worker/ops/attention.h"
#include "gpu_worker/ops/op.h"

namespace tandem::gpu_worker::model {

struct DecoderLimits {
  int32_t max_rows = 0;       // of a step, all sub-batches together
  int32_t max_positions = 0;  // longest sequence
  LoadProgress load_progress;
};

// Rows [first, first + count) of the activations. Two ranges in one step must start LinearRows
// apart.
struct RowRange {
  int32_t first = 0;
  int32_t count = 0;
};

// Rows of logits at a time.
int32_t MaxLogitRows(int32_t vocab_size);

// A decoder's dense parts, piece by piece. Each call queues work on the context's stream; what
// spans point to must stay until the stream is past it. Attention is between Pre and Post: it reads
// qkv() and writes attention_out().
class Decoder {
 public:
  static absl::StatusOr<std::unique_ptr<Decoder>> Load(ops::OpContext* context,
                                                       const model_files::ModelFiles& files,
                                                       const DecoderLimits& limits,
                                                       const TensorParallel& parallel = {});
  // Of one of several devices, before the first step; outlives the decoder's use. Null (for timing
  // one device alone): what the others would add is missing.
  void SetCommunicator(device::Communicator* communicator) { communicator_ = communicator; }

  // Makes the rotary table reach `positions`; no queued work may be running.
  absl::Status PreparePositions(int32_t positions) { return rope_.Prepare(positions); }

  void Embed(RowRange rows, std::span<const int32_t> tokens);
  // Attention norm, QKV, q/k norm, rotation by each row's position.
  void Pre(int32_t layer, RowRange rows, std::span<const int32_t> positions);
  // Output projection and MLP, both added to the residual stream.
  void Post(int32_t layer, RowRange rows);
  // Zeroes attention_out() of rows [0, count), for timing without attention.
  void ClearAttention(int32_t count);
  // Final norm and logits of up to max_logit_rows() rows, to logits(). All of several devices get
  // them.
  void Logits(std::span<const int32_t> row_ids);

  ops::QkvRows qkv() const;  // [rows, q, k, v] float32, indexed by row
  std::byte* attention_out() const { return attention_->data(); }  // [rows, q_size] compute dtype
  float* logits() const { return logits_->as<float>(); }        // [rows, vocab_size], on the device
  const float* hidden() const { return hidden_->as<float>(); }  // [rows, hidden_size] residual
  int32_t max_rows() const { return max_rows_; }
  int64_t row_capacity() const { return row_capacity_; }  // of all ranges with their room
  int32_t max_logit_rows() const { return max_logit_rows_; }
  const ModelShape& shape() const { return shape_; }  // of several devices this one's: RankShape
  const Weights& weights() const { return weights_; }

 private:
  Decoder(ops::OpContext* context, const ModelShape& shape);
  absl::Status Allocate(const DecoderLimits& limits);
  // residual += in * weights, of all devices together.
  void AddToResidual(const ops::PackedLinear& weights, const std::byte* in, RowRange rows);
  std::byte* At(const device::Buffer& buffer, int64_t row, int64_t width, DType dtype) const;

  ops::OpContext* context_;
  ModelShape shape_;
  Weights weights_;
  TensorParallel parallel_;
  device::Communicator* communicator_ = nullptr;
  RopeTable rope_;
  std::unique_ptr<device::Buffer> hidden_;       // [rows, hidden_size] float32, the residual stream
  std::unique_ptr<device::Buffer> normed_;       // [rows, hidden_size]
  std::unique_ptr<device::Buffer> qkv_;          // [rows, q_size + 2 * kv_size] float32
  std::unique_ptr<device::Buffer> attention_;    // [rows, q_size]
  std::unique_ptr<device::Buffer> gate_up_;      // [rows, 2 * intermediate_size]
  std::unique_ptr<device::Buffer> activated_;    // [rows, intermediate_size]
  std::unique_ptr<device::Buffer> last_;         // [max_logit_rows, hidden_size] normed
  std::unique_ptr<device::Buffer> logits_;       // [max_logit_rows, vocab_size] float32
  std::unique_ptr<device::Buffer> rank_logits_;  // this device's columns, of several devices
  int32_t max_rows_ = 0;
  int64_t row_capacity_ = 0;
  int32_t max_logit_rows_ = 0;
};

}  // namespace tandem::gpu_worker::model
