// Sequences whose output is constrained, over the fake runner.
#include <gtest/gtest.h>

#include "tests/gpu_worker/engine/core_driver.h"

namespace tandem::gpu_worker {
namespace {

constexpr int32_t kEnd = 3;

// `length` times token 7, then the end.
class Counting : public TokenConstraint {
 public:
  explicit Counting(size_t length, int32_t vocab_size)
      : length_(length), mask_((static_cast<size_t>(vocab_size) + 31) / 32) {}
  void Begin(std::span<const int32_t> output_tokens) override {
    ++begun;
    const int32_t allowed = output_tokens.size() < length_ ? 7 : kEnd;
    std::fill(mask_.begin(), mask_.end(), 0);
    mask_[0] |= 1u << allowed;
  }
  absl::StatusOr<std::span<const uint32_t>> Wait() override {
    if (!failure.ok()) {
      return failure;
    }
    return std::span<const uint32_t>(mask_);
  }

  absl::Status failure;
  int begun = 0;

 private:
  size_t length_;
  std::vector<uint32_t> mask_;
};

EngineOptions Options() {
  EngineOptions options;
  options.max_model_len = 1000;
  options.eos_token_ids = {kEnd};
  return options;
}

TEST(EngineConstraint, TheEndOfTheGrammarEndsTheOutput) {
  for (const bool ignore_eos : {false, true}) {
    const RunnerLimits limits = SmallLimits(16, 0);
    CoreDriver driver(Options(), limits);
    const auto constraint = std::make_shared<Counting>(2, limits.vocab_size);
    GenerationRequest request = driver.Request(5, 50);
    request.constraint = constraint;
    request.ignore_eos = ignore_eos;
    request.min_tokens = 20;
    const uint64_t id = driver.Submit(std::move(request));
    ASSERT_NE(id, 0u);
    ASSERT_TRUE(driver.RunToEnd());
    EXPECT_EQ(driver.outcome(id).tokens, (std::vector<int32_t>{7, 7, kEnd}));
    EXPECT_EQ(driver.outcome(id).last.finish, FinishReason::kStop);
    EXPECT_EQ(driver.outcome(id).last.stop_token, kEnd);
    EXPECT_EQ(constraint->begun, 3);
  }
}

TEST(EngineConstraint, AResumedSequenceGoesOn) {
  const RunnerLimits limits = SmallLimits(16, 0);
  CoreDriver driver(Options(), limits);
  GenerationRequest request = driver.Request(5, 50);
  request.constraint = std::make_shared<Counting>(3, limits.vocab_size);
  request.resumed_tokens = {7, 7};
  const uint64_t id = driver.Submit(std::move(request));
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(id).tokens, (std::vector<int32_t>{7, kEnd}));
}

TEST(EngineConstraint, AFailureEndsItsSequenceAlone) {
  const RunnerLimits limits = SmallLimits(16, 0);
  CoreDriver driver(Options(), limits);
  const auto constraint = std::make_shared<Counting>(2, limits.vocab_size);
  constraint->failure = absl::InvalidArgumentError("too slow");
  GenerationRequest constrained = driver.Request(5, 50, 1);
  constrained.constraint = constraint;
  const uint64_t failing = driver.Submit(std::move(constrained));
  const uint64_t other = driver.Submit(driver.Request(5, 4, 2));
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(failing).last.error.message(), "too slow");
  EXPECT_TRUE(driver.outcome(other).last.error.ok());
  EXPECT_EQ(driver.snapshot().gpu_blocks_used, 0);
}

}  // namespace
}  // namespace tandem::gpu_worker
