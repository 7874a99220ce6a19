#include "tests/cpu_attention_worker/server/reference_sequences.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/bfloat16.h"
#include "common/base/status_macros.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr float kScale = 0.125f;
constexpr int32_t kMostSteps = 16;  // tokens that a sequence may grow by

}  // namespace

ReferenceSequences::ReferenceSequences(exchange::DeviceSide* device,
                                       const std::vector<int32_t>& start_tokens)
    : device_(device), geometry_(device->header().geometry) {
  std::vector<int32_t> blocks(geometry_.num_blocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<int32_t>(i);
  }
  std::shuffle(blocks.begin(), blocks.end(), random_);
  for (const int32_t start : start_tokens) {
    Sequence sequence;
    const auto needed = static_cast<size_t>(start + kMostSteps) / geometry_.block_tokens + 1;
    sequence.table.assign(blocks.end() - static_cast<ptrdiff_t>(needed), blocks.end());
    blocks.resize(blocks.size() - needed);
    for (int32_t position = 0; position < start; ++position) {
      sequence.tokens.push_back(RandomToken());
      StoreHistory(sequence, position);
    }
    sequences_.push_back(std::move(sequence));
  }
}

float ReferenceSequences::Round(float value) const {
  const bool exact = geometry_.compute_dtype == static_cast<uint32_t>(DType::kFloat32) &&
                     geometry_.kv_dtype == static_cast<uint32_t>(DType::kFloat32);
  return exact ? value : base::BFloat16ToFloat(base::FloatToBFloat16(value));
}

std::vector<float> ReferenceSequences::Random(size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = Round(normal(random_));
  }
  return values;
}

ReferenceSequences::Token ReferenceSequences::RandomToken() {
  const size_t count = size_t{geometry_.num_layers} * geometry_.num_kv_heads * geometry_.head_dim;
  Token token;
  token.k = Random(count);
  token.v = Random(count);
  return token;
}

void ReferenceSequences::StoreHistory(const Sequence& sequence, int32_t position) {
  const kv::PoolGeometry pool = exchange::PoolGeometryOf(geometry_);
  const size_t row = size_t{geometry_.num_kv_heads} * geometry_.head_dim;
  const Token& token = sequence.tokens[static_cast<size_t>(position)];
  const int32_t block = sequence.table[static_cast<size_t>(position) / geometry_.block_tokens];
  for (int32_t layer = 0; layer < pool.num_layers; ++layer) {
    kv::StoreToken(pool, device_->pool() + pool.LayerOffset(block, layer),
                   position % pool.block_tokens,
                   {&token.k[static_cast<size_t>(layer) * row],
                    &token.v[static_cast<size_t>(layer) * row], DType::kFloat32});
  }
}

void ReferenceSequences::Write(std::byte* target, const float* values, size_t count) const {
  if (geometry_.compute_dtype == static_cast<uint32_t>(DType::kFloat32)) {
    std::memcpy(target, values, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    reinterpret_cast<uint16_t*>(target)[i] = base::FloatToBFloat16(values[i]);
  }
}

void ReferenceSequences::WriteRow(int slot, size_t row, const Sequence& sequence, int32_t layer) {
  const size_t q_row = size_t{geometry_.num_q_heads} * geometry_.head_dim;
  const size_t kv_row = size_t{geometry_.num_kv_heads} * geometry_.head_dim;
  const auto element = static_cast<size_t>(DTypeBytes(static_cast<DType>(geometry_.compute_dtype)));
  const auto index = static_cast<size_t>(layer);
  Write(device_->q(slot) + row * q_row * element, &sequence.q[index * q_row], q_row);
  Write(device_->k(slot) + row * kv_row * element, &sequence.tokens.back().k[index * kv_row],
        kv_row);
  Write(device_->v(slot) + row * kv_row * element, &sequence.tokens.back().v[index * kv_row],
        kv_row);
}

void ReferenceSequences::CheckRow(int slot, size_t row, const Sequence& sequence, int32_t layer) {
  const size_t dim = geometry_.head_dim;
  const size_t q_row = geometry_.num_q_heads * dim;
  const size_t kv_row = geometry_.num_kv_heads * dim;
  const size_t group = geometry_.num_q_heads / geometry_.num_kv_heads;
  const auto index = static_cast<size_t>(layer);
  const bool is_float = geometry_.compute_dtype == static_cast<uint32_t>(DType::kFloat32);
  double largest = 0;
  double error = 0;
  for (size_t head = 0; head < geometry_.num_q_heads; ++head) {
    const size_t kv = index * kv_row + head / group * dim;
    std::vector<double> want(dim, 0.0);
    double total = 0;
    for (const Token& token : sequence.tokens) {
      double score = 0;
      for (size_t d = 0; d < dim; ++d) {
        score += double{sequence.q[index * q_row + head * dim + d]} * double{token.k[kv + d]};
      }
      const double p = std::exp(score * double{kScale});
      total += p;
      for (size_t d = 0; d < dim; ++d) {
        want[d] += p * double{token.v[kv + d]};
      }
    }
    for (size_t d = 0; d < dim; ++d) {
      const size_t at = row * q_row + head * dim + d;
      const float got =
          is_float ? reinterpret_cast<const float*>(device_->o(slot))[at]
                   : base::BFloat16ToFloat(reinterpret_cast<const uint16_t*>(device_->o(slot))[at]);
      largest = std::max(largest, std::abs(want[d] / total));
      error = std::max(error, std::abs(double{got} - want[d] / total));
    }
  }
  error_ = std::max(error_, error / largest);
}

absl::Status ReferenceSequences::RunLayer(int32_t layer, const std::vector<size_t> (&members)[2]) {
  for (int slot = 0; slot < 2; ++slot) {
    if (members[slot].empty()) {
      continue;
    }
    for (size_t row = 0; row < members[slot].size(); ++row) {
      WriteRow(slot, row, sequences_[members[slot][row]], layer);
    }
    device_->Post(slot, layer);
  }
  if (layer == 0 && on_first_post_) {
    on_first_post_();
  }
  for (int slot = 0; slot < 2; ++slot) {
    if (members[slot].empty()) {
      continue;
    }
    switch (device_->WaitDone(slot, layer, timeout_us)) {
      case exchange::WaitResult::kDone:
        break;
      case exchange::WaitResult::kReleased:
        return absl::UnavailableError("released");
      case exchange::WaitResult::kTimedOut:
        return absl::DeadlineExceededError("timed out");
    }
    for (size_t row = 0; row < members[slot].size(); ++row) {
      CheckRow(slot, row, sequences_[members[slot][row]], layer);
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceSequences::RunStep(uint64_t epoch, bool two_slots) {
  error_ = 0;
  std::vector<exchange::SlotRow> rows[2];
  std::vector<size_t> members[2];
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    if (!repeat_) {
      sequence.tokens.push_back(RandomToken());
      sequence.q =
          Random(size_t{geometry_.num_layers} * geometry_.num_q_heads * geometry_.head_dim);
    }
    const size_t slot = two_slots ? i % 2 : 0;
    rows[slot].push_back({static_cast<int32_t>(sequence.tokens.size()), sequence.table});
    members[slot].push_back(i);
  }
  repeat_ = true;
  TANDEM_RETURN_IF_ERROR(device_->BeginStep(epoch, rows[0], rows[1], kScale, timeout_us));
  for (int32_t layer = 0; layer < static_cast<int32_t>(geometry_.num_layers); ++layer) {
    TANDEM_RETURN_IF_ERROR(RunLayer(layer, members));
  }
  repeat_ = false;
  return absl::OkStatus();
}

}  // namespace tandem::cpu_attention_worker
