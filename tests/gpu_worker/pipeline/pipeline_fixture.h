#pragma once

#include <memory>
#include <string>

#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gtest/gtest.h"
#include "tests/gpu_worker/pipeline/golden_cases.h"
#include "tests/gpu_worker/pipeline/sequence_driver.h"

namespace tandem::gpu_worker {

// A runner of a tiny golden model in float32 with both tiers.
inline std::unique_ptr<PipelineRunner> MakeRunner(const PipelineOptions& options,
                                                  const std::string& model = "llama3-like") {
  auto files = model_files::OpenModel(GoldenFolder(model));
  EXPECT_TRUE(files.ok()) << files.status();
  auto runner = PipelineRunner::Create(options, **files);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return *std::move(runner);
}

inline PipelineOptions TwoTierOptions() {
  PipelineOptions options;
  options.compute_dtype = DType::kFloat32;
  options.cpu_kv_dtype = DType::kFloat32;
  options.max_num_seqs = 16;
  options.cpu_kv_bytes = uint64_t{64} << 20;
  return options;
}

// A golden case as a sequence to run.
inline SequenceDriver::Sequence ToSequence(const GoldenCase& golden, bool on_cpu, int sub_batch) {
  SequenceDriver::Sequence sequence;
  sequence.prompt = golden.prompt;
  sequence.num_tokens = static_cast<int32_t>(golden.tokens.size());
  sequence.on_cpu = on_cpu;
  sequence.sub_batch = sub_batch;
  return sequence;
}

}  // namespace tandem::gpu_worker
