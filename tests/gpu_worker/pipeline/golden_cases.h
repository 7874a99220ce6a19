#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::gpu_worker {

// A case of tests/data/goldens/<model>/goldens.json: what an independent float32 implementation
// answers.
struct GoldenCase {
  std::string name;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;               // of tokens
  std::vector<double> margins;                // between the two best logits of each step
  std::vector<std::vector<int32_t>> top_ids;  // five per step
  std::vector<std::vector<double>> top_logprobs;
  std::vector<double> prompt_logprobs;  // of prompt tokens 1.., where the case has them
};

// The device that this run of the tests is for: host, or cuda with the driver that the loader
// finds.
std::string TestDevice();
// How many of them share out the model.
int32_t TestTensorParallel();

std::string GoldenFolder(const std::string& model);
std::vector<GoldenCase> LoadGoldenCases(const std::string& model);

}  // namespace tandem::gpu_worker
