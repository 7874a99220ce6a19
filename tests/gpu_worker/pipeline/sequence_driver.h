#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// Runs a few greedy sequences through a StepRunner, in the way that a test asks for: a scheduler
// without any policy.
class SequenceDriver {
 public:
  struct Sequence {
    std::vector<int32_t> prompt;
    int32_t num_tokens = 0;  // to generate
    bool on_cpu = false;     // where its KV lives
    int sub_batch = 0;       // in the asymmetric mode
    int32_t num_prompt_logprobs = -1;
    int32_t num_logprobs = 5;

    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;

    int32_t computed = 0;  // tokens whose KV is stored
    std::vector<int32_t> gpu_blocks;
    std::vector<int32_t> cpu_blocks;
  };

  SequenceDriver(StepRunner* runner, uint64_t seed);

  // Blocks for the whole life of the sequence are taken here, in random order.
  void Add(Sequence sequence);
  // One step of everything that is not finished, prompts in chunks of `chunk`; false: all are.
  bool Plan(StepMode mode, int32_t chunk, StepInput* input);
  absl::Status Step(StepMode mode, int32_t chunk);
  absl::Status RunAll(StepMode mode, int32_t chunk);
  // Makes the next step move a sequence to the other pool, instead of computing it.
  void Move(size_t index) {
    if (std::find(moves_.begin(), moves_.end(), index) == moves_.end()) {
      moves_.push_back(index);
    }
  }
  void Apply(const StepInput& input, const StepOutput& output);

  std::vector<Sequence>& sequences() { return sequences_; }
  int graph_steps() const { return graph_steps_; }
  int captures() const { return captures_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t NextEpoch() { return ++epoch_; }

 private:
  SequenceWork WorkOf(const Sequence& sequence, size_t index, int32_t chunk) const;
  int32_t Take(std::vector<int32_t>& free);

  StepRunner* runner_;
  SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> free_gpu_;
  std::vector<int32_t> free_cpu_;
  std::vector<size_t> moves_;
  uint64_t epoch_ = 0;
  int graph_steps_ = 0;
  int captures_ = 0;
};

}  // namespace tandem::gpu_worker
