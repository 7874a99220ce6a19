#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "gpu_worker/ops/op.h"
#include "gpu_worker/ops/token_choice.h"

namespace tandem::gpu_worker::ops {

// Chooses tokens on a device that has memory of its own, so that logits stay there: the same tokens
// as gpu_worker/ops/sampling.h, but for draws that fall on a border within rounding.
class TokenChooser {
 public:
  // Of row `row` of the call; on the stream's host thread, in order.
  using Take = std::function<void(size_t row, int32_t token, std::optional<TokenLogprobs>)>;

  virtual ~TokenChooser() = default;
  // Queues on the context's stream what `choices` want of `logits` [choices.size(), vocab] float32,
  // device memory, at most max_rows rows with at most kMaxLogprobs logprobs each. What `choices`
  // point to, masks included, is needed during the call alone. Errors are the stream's.
  virtual void Choose(const float* logits, std::span<const TokenChoice> choices, Take take) = 0;
};

// Null where the host's memory is the device's: there gpu_worker/ops/sampling.h does it.
absl::StatusOr<std::unique_ptr<TokenChooser>> CreateTokenChooser(OpContext* context,
                                                                 int32_t max_rows, int32_t vocab);

// Bytes of device memory that it takes.
uint64_t TokenChooserBytes(int32_t max_rows, int32_t vocab);

}  // namespace tandem::gpu_worker::ops
