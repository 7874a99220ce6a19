#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/pipeline/step_mode.h"

// What the engine hands to a step runner and gets back. Spans point into engine state that stays
// unchanged until Run returns.
namespace tandem::gpu_worker {

// Sampling as vLLM does it: penalties, then temperature, then min_p, top_k, top_p. Temperature
// below 1e-5 is greedy.
struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;  // <= 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// Which tokens may come next in one sequence, computed beside the step. One step at a time uses it;
// its own threads do the work.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Starts computing what may follow `output_tokens`, the whole output so far. Does not wait;
  // asking for the same again costs nothing.
  virtual void Begin(std::span<const int32_t> output_tokens) = 0;
  // The mask that Begin asked for: bit i % 32 of word i / 32 is set where token i may come next.
  // Waits a bounded time; an error ends the sequence.
  virtual absl::StatusOr<std::span<const uint32_t>> Wait() = 0;
};

// One token to sample after a sequence's last row. The random number depends on (seed, output
// position) alone.
struct SampleRequest {
  const SamplingParams* params = nullptr;
  std::span<const int32_t> prompt_tokens;
  std::span<const int32_t> output_tokens;     // so far; its size is the output position
  std::span<const int32_t> forbidden_tokens;  // e.g. end tokens while below min_tokens
  int32_t num_logprobs = -1;  // -1: none; n, up to kMaxLogprobs: the chosen and the n best
  TokenConstraint* constraint = nullptr;     // gives `allowed_tokens` when the token is sampled
  std::span<const uint32_t> allowed_tokens;  // bits by token id; empty: all
};

// Most alternatives that anything may ask for.
inline constexpr int32_t kMaxLogprobs = 256;

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;
  int32_t rank = 0;  // 1 is the most likely
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // best first
};

enum class WorkKind {
  kPrefillGpu,  // rows attend to and are stored in device blocks
  kPrefillCpu,  // KV ends in CPU blocks: each layer goes through a staging area on the device
                // (earlier tokens of the layer are copied in, new ones copied out)
  kDecodeGpu,   // one row
  kDecodeCpu,   // one row; attention by the CPU attention worker
};

// The rows of one sequence in one step.
struct SequenceWork {
  uint64_t sequence_id = 0;
  std::string_view request_id;  // for logs
  WorkKind kind = WorkKind::kPrefillGpu;
  std::span<const int32_t> tokens;  // token ids of the rows; one for decodes
  int32_t start_position = 0;       // of tokens[0]; everything before it is in the cache
  std::span<const int32_t>
      block_table;  // device or CPU block ids, covering start_position + tokens.size()
  std::optional<SampleRequest> sample;  // set: a token is wanted after the last row
  int32_t num_prompt_logprobs =
      -1;  // >= 0 (prefill): logprobs of the prompt tokens that follow each row
  std::span<const int32_t>
      next_tokens;  // with prompt logprobs: for each row the prompt token after it (the last row
                    // of a prompt has none: the span is one shorter)
};

// KV of tokens [0, num_tokens) of a sequence copied between the pools, beside the step and the
// step's other copies: a sequence that moves does so once, and has no rows in it.
struct PoolCopy {
  bool to_cpu = false;
  std::span<const int32_t> gpu_blocks;
  std::span<const int32_t> cpu_blocks;
  int64_t num_tokens = 0;
};

struct StepInput {
  uint64_t epoch = 0;  // grows by one with every step that is tried
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;  // of the asymmetric mode
  std::vector<PoolCopy> copies;
  std::vector<SequenceWork> sub_batch[2];  // A, B; B is empty except in asymmetric mode
};

struct SequenceOutput {
  uint64_t sequence_id = 0;
  std::optional<int32_t> token;                // sampled
  absl::Status status;                         // not OK: why there is no token
  std::optional<TokenLogprobs> logprobs;       // of it
  std::vector<TokenLogprobs> prompt_logprobs;  // of next_tokens
};

// Measured, for the cost model's correction.
struct StepTimings {
  double total_us = 0;
  double linear_us = 0;
  double prefill_us = 0;
  double gpu_decode_us = 0;
  double cpu_decode_us = 0;  // device side: time spent waiting for the CPU worker's outputs
  double copies_us = 0;
  double cpu_busy_us = 0;  // the CPU worker's own computing, hidden or not; 0: unknown
};

struct StepOutput {
  std::vector<SequenceOutput>
      sequences;  // those that sampled or have prompt logprobs; sub-batch A's, then B's
  StepTimings timings;
  bool is_graph = false;     // its layers ran as a graph
  bool is_captured = false;  // which was captured in this step
};

// Sizes that the engine plans with.
struct RunnerLimits {
  int32_t num_gpu_blocks = 0;
  int32_t gpu_block_tokens = 16;
  int32_t num_cpu_blocks = 0;  // 0: no CPU tier
  int32_t cpu_block_tokens = 128;
  int32_t max_cpu_rows_per_slot = 0;
  int64_t max_cpu_table_entries_per_slot = 0;
  int32_t max_batched_tokens = 0;
  int32_t saturating_rows = 0;  // more take time in proportion; 0: not known
  int32_t vocab_size = 0;
};

// Rates measured at start in well under a second, for the roofline cost model.
struct MeasuredRates {
  double weight_bytes = 0;                // read by each step
  double memory_bytes_per_us = 0;         // device, streaming weights
  double flops_per_us = 0;                // device, large matmuls
  double attention_bytes_per_us = 0;      // device decode attention
  double cpu_attention_bytes_per_us = 0;  // CPU worker's decode attention
  double copy_bytes_per_us = 0;           // between the pools
  double launch_us = 0;                   // per stage
  double kv_bytes_per_token_layer = 0;    // device pool
  double cpu_kv_bytes_per_token_layer = 0;
  double flops_per_token = 0;  // dense layers, all layers
  double overlap = 1.0;        // 1: device and CPU attention run side by side; 0: they share cores
  int32_t num_layers = 0;
};

// Executes steps. One thread calls Run. Implementations: pipeline::PipelineRunner; fakes; later the
// simulator's.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual const RunnerLimits& limits() const = 0;
  virtual MeasuredRates MeasureRates() = 0;
  // Runs the whole step or returns why it was aborted, leaving nothing visible: Unavailable (CPU
  // worker died or hangs; the step may be repeated with a new epoch), Internal (the step can never
  // work).
  virtual absl::StatusOr<StepOutput> Run(const StepInput& input) = 0;
};

}  // namespace tandem::gpu_worker
