#include "gpu_worker/ops/token_chooser.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/cuda/sample_rows.h"
#include "gpu_worker/ops/sampling.h"

namespace tandem::gpu_worker::ops {
namespace {

uint64_t Rows(int32_t rows) { return static_cast<uint64_t>(rows); }

uint64_t EntryBytes(int32_t max_top) {
  return (1 + static_cast<uint64_t>(max_top)) * sizeof(cuda::LogprobEntry);
}

bool WantsLargestAlone(const TokenChoice& choice) {
  return choice.request != nullptr && choice.num_logprobs < 0 && IsPlainGreedy(*choice.request);
}

class CudaTokenChooser : public TokenChooser {
 public:
  CudaTokenChooser(OpContext* context, int32_t max_rows, int32_t vocab)
      : context_(context), max_rows_(max_rows), vocab_(vocab) {}

  absl::Status Allocate() {
    device::Device& device = context_->device();
    const uint64_t token_bytes = Rows(max_rows_) * sizeof(int32_t);
    const uint64_t entry_bytes = Rows(max_rows_) * EntryBytes(kMaxLogprobs);
    const uint64_t scratch_bytes = Rows(max_rows_) * Rows(vocab_) * sizeof(float);
    TANDEM_ASSIGN_OR_RETURN(scratch_, device.Allocate(scratch_bytes, "the sampler"));
    TANDEM_ASSIGN_OR_RETURN(tokens_, device.Allocate(token_bytes, "the sampler"));
    TANDEM_ASSIGN_OR_RETURN(entries_, device.Allocate(entry_bytes, "the sampler"));
    TANDEM_ASSIGN_OR_RETURN(host_tokens_, device.AllocateHost(token_bytes, "the host's tokens"));
    TANDEM_ASSIGN_OR_RETURN(host_entries_, device.AllocateHost(entry_bytes, "the host's logprobs"));
    return absl::OkStatus();
  }

  void Choose(const float* logits, std::span<const TokenChoice> choices, Take take) override {
    TANDEM_CHECK(choices.size() <= Rows(max_rows_));
    if (choices.empty()) {
      return;
    }
    device::CudaStream& stream = cuda::AsCuda(context_->stream());
    int32_t max_top = -1;
    if (std::all_of(choices.begin(), choices.end(), WantsLargestAlone)) {
      stream.Fail(cuda::Argmax(
          context_->cuda().launcher(), stream.handle(),
          {logits, tokens_->as<int32_t>(), static_cast<int32_t>(choices.size()), vocab_}));
    } else {
      max_top = Sample(stream, logits, choices);
    }
    stream.CopyToHost(host_tokens_->data(), tokens_->data(), choices.size() * sizeof(int32_t));
    std::vector<int32_t> num_logprobs;
    for (const TokenChoice& choice : choices) {
      num_logprobs.push_back(choice.num_logprobs);
    }
    if (max_top >= 0) {
      stream.CopyToHost(host_entries_->data(), entries_->data(),
                        choices.size() * EntryBytes(max_top));
    }
    stream.Launch([this, max_top, num_logprobs = std::move(num_logprobs), take = std::move(take)] {
      for (size_t i = 0; i < num_logprobs.size(); ++i) {
        std::optional<TokenLogprobs> logprobs;
        if (num_logprobs[i] >= 0) {
          const size_t first = i * (1 + static_cast<size_t>(max_top));
          logprobs =
              cuda::LogprobsFrom(host_entries_->as<cuda::LogprobEntry>() + first, num_logprobs[i]);
        }
        take(i, host_tokens_->as<int32_t>()[i], std::move(logprobs));
      }
      return absl::OkStatus();
    });
  }

 private:
  // Gives the largest num_logprobs.
  int32_t Sample(device::CudaStream& stream, const float* logits,
                 std::span<const TokenChoice> choices) {
    cuda::SampleBatch batch = cuda::MakeSampleBatch(choices, vocab_);
    TANDEM_CHECK(batch.max_logprobs <= kMaxLogprobs);
    batch.PointToMasks(Upload(stream, batch.masks));
    const cuda::LogitRowsParams rows{logits, Upload(stream, batch.rows), tokens_->as<int32_t>(),
                                     static_cast<int32_t>(choices.size()), vocab_};
    cuda::DriverLauncher& launcher = context_->cuda().launcher();
    stream.Fail(cuda::Sample(launcher, stream.handle(),
                             {rows, scratch_->as<float>(), Upload(stream, batch.edits)}));
    if (batch.max_logprobs >= 0) {
      stream.Fail(cuda::Logprobs(launcher, stream.handle(),
                                 {rows, entries_->as<cuda::LogprobEntry>(), batch.max_logprobs}));
    }
    return batch.max_logprobs;
  }

  template <typename T>
  static const T* Upload(device::CudaStream& stream, const std::vector<T>& values) {
    return values.empty() ? nullptr
                          : reinterpret_cast<const T*>(
                                stream.Upload(values.data(), values.size() * sizeof(T)));
  }

  OpContext* context_;
  const int32_t max_rows_;
  const int32_t vocab_;
  std::unique_ptr<device::Buffer> scratch_;  // [max_rows, vocab] float32
  std::unique_ptr<device::Buffer> tokens_;   // [max_rows]
  std::unique_ptr<device::Buffer> entries_;  // [max_rows, 1 + kMaxLogprobs]
  std::unique_ptr<device::Buffer> host_tokens_;
  std::unique_ptr<device::Buffer> host_entries_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenChooser>> CreateTokenChooser(OpContext* context,
                                                                 int32_t max_rows, int32_t vocab) {
  if (!cuda::IsCuda(*context)) {
    return nullptr;
  }
  auto chooser = std::make_unique<CudaTokenChooser>(context, max_rows, vocab);
  TANDEM_RETURN_IF_ERROR(chooser->Allocate());
  return chooser;
}

uint64_t TokenChooserBytes(int32_t max_rows, int32_t vocab) {
  return Rows(max_rows) *
         (Rows(vocab) * sizeof(float) + sizeof(int32_t) + EntryBytes(kMaxLogprobs));
}

}  // namespace tandem::gpu_worker::ops
