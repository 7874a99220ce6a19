#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "common/exchange/device_side.h"

namespace tandem::cpu_attention_worker {

// Growing sequences with random Q, K and V, their attention in float64, and one step of all of them
// through an exchange of compute dtype bfloat16 or float32.
class ReferenceSequences {
 public:
  // Sequence i starts with start_tokens[i] tokens of history, which go to the pool directly.
  ReferenceSequences(exchange::DeviceSide* device, const std::vector<int32_t>& start_tokens);

  // Adds one token to each sequence and runs the step: sequence i is in slot i % 2 when
  // `two_slots`. A failed or timed-out layer ends it with that status. Rows are posted again
  // unchanged when the last step failed.
  absl::Status RunStep(uint64_t epoch, bool two_slots);
  // Largest error of the last step's outputs relative to the largest output.
  double error() const { return error_; }
  // Called after layer 0 was posted.
  void set_on_first_post(std::function<void()> hook) { on_first_post_ = std::move(hook); }
  int64_t timeout_us = 30'000'000;

 private:
  struct Token {
    std::vector<float> k;  // [layers, kv_heads, head_dim], rounded to the row and pool dtypes
    std::vector<float> v;
  };
  struct Sequence {
    std::vector<int32_t> table;
    std::vector<Token> tokens;
    std::vector<float> q;  // [layers, q_heads, head_dim] of the newest token
  };
  std::vector<float> Random(size_t count);
  Token RandomToken();
  void StoreHistory(const Sequence& sequence, int32_t position);
  void WriteRow(int slot, size_t row, const Sequence& sequence, int32_t layer);
  void CheckRow(int slot, size_t row, const Sequence& sequence, int32_t layer);
  void Write(std::byte* target, const float* values, size_t count) const;
  float Round(float value) const;
  absl::Status RunLayer(int32_t layer, const std::vector<size_t> (&members)[2]);

  exchange::DeviceSide* device_;
  exchange::Geometry geometry_;
  std::mt19937_64 random_{42};
  std::vector<Sequence> sequences_;
  std::function<void()> on_first_post_;
  bool repeat_ = false;
  double error_ = 0;
};

}  // namespace tandem::cpu_attention_worker
