#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "gpu_worker/engine/engine.h"
#include "tests/gpu_worker/engine/core_driver.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kPatienceUs = 30'000'000;

// Collects the updates of several sequences; any thread.
class Collector {
 public:
  UpdateSink Sink() {
    return [this](GenerationUpdate update) {
      const std::scoped_lock lock(mutex_);
      tokens_.insert(tokens_.end(), update.tokens.begin(), update.tokens.end());
      if (update.finish != FinishReason::kNone) {
        last_ = update;
        ++ends_;
      }
      ++updates_;
      changed_.notify_all();
    };
  }
  bool WaitForUpdates(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(kPatienceUs),
                             [&] { return updates_ >= count; });
  }
  bool WaitForEnds(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(kPatienceUs),
                             [&] { return ends_ >= count; });
  }
  std::vector<int32_t> tokens() {
    const std::scoped_lock lock(mutex_);
    return tokens_;
  }
  GenerationUpdate last() {
    const std::scoped_lock lock(mutex_);
    return last_;
  }
  int updates() {
    const std::scoped_lock lock(mutex_);
    return updates_;
  }
  int ends() {
    const std::scoped_lock lock(mutex_);
    return ends_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  GenerationUpdate last_;
  int updates_ = 0;
  int ends_ = 0;
};

EngineOptions Options(OffloadPolicy policy) {
  EngineOptions options;
  options.offload = policy;
  options.check_invariants_each_step = true;
  return options;
}

class EngineThreadTest : public testing::Test {
 protected:
  EngineThreadTest() : helper_(Options(OffloadPolicy::kOff), SmallLimits(32, 64)) {}

  std::unique_ptr<Engine> MakeEngine(OffloadPolicy policy) {
    auto engine = Engine::Create(Options(policy), &runner_, &base::SystemClock(), nullptr);
    engine->Start();
    engine->OnCpuBlocksReady(64);
    engine->OnCpuWorkerUp();
    return engine;
  }

  CoreDriver helper_;  // for requests and what they have to give
  FakeStepRunner runner_{SmallLimits(32, 64)};
};

TEST_F(EngineThreadTest, ServesManyThreads) {
  for (const OffloadPolicy policy : {OffloadPolicy::kAuto, OffloadPolicy::kAsymmetric}) {
    auto engine = MakeEngine(policy);
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&, c] {
        for (int i = 0; i < 5; ++i) {
          Collector collector;
          const GenerationRequest request = helper_.Request(20 + c, 30, 10 * c + i);
          EXPECT_EQ(engine->Submit(request, collector.Sink()).outcome, SubmitOutcome::kAccepted);
          EXPECT_TRUE(collector.WaitForEnds(1));
          EXPECT_EQ(collector.tokens(), helper_.Expected(request));
        }
      });
    }
    for (std::thread& client : clients) {
      client.join();
    }
    EXPECT_TRUE(engine->WaitIdle(kPatienceUs));
    EXPECT_EQ(engine->snapshot().gpu_blocks_used, 0);
    EXPECT_EQ(engine->snapshot().cpu_blocks_used, 0);
    EXPECT_EQ(engine->snapshot().generated_tokens, 4u * 5 * 30);
  }
  EXPECT_THAT(runner_.errors(), testing::IsEmpty());
}

TEST_F(EngineThreadTest, CancelWhileRunningFreesBlocks) {
  auto engine = MakeEngine(OffloadPolicy::kAllCpu);
  Collector collector;
  const SubmitResult result = engine->Submit(helper_.Request(20, 1'000'000), collector.Sink());
  ASSERT_TRUE(collector.WaitForUpdates(5));
  engine->Cancel(result.sequence_id);
  EXPECT_TRUE(engine->WaitIdle(kPatienceUs));
  EXPECT_EQ(engine->snapshot().cpu_blocks_used, 0);
  const int updates = collector.updates();
  Collector other;
  engine->Submit(helper_.Request(20, 10), other.Sink());
  EXPECT_TRUE(other.WaitForEnds(1));
  EXPECT_EQ(collector.updates(), updates) << "no update after the cancelled sequence left";
}

TEST_F(EngineThreadTest, WorkerDeathsInTheMiddleChangeNothing) {
  auto engine = MakeEngine(OffloadPolicy::kAllCpu);
  Collector collector;
  const GenerationRequest request = helper_.Request(20, 400);
  engine->Submit(request, collector.Sink());
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(collector.WaitForUpdates(50 * i));
    runner_.SetCpuWorkerUp(false);
    engine->OnCpuWorkerDown();
    runner_.SetCpuWorkerUp(true);
    engine->OnCpuWorkerUp();
  }
  EXPECT_TRUE(collector.WaitForEnds(1));
  EXPECT_EQ(collector.tokens(), helper_.Expected(request));
  EXPECT_THAT(runner_.errors(), testing::IsEmpty());
}

TEST_F(EngineThreadTest, DrainRefusesNewAndFinishesOld) {
  auto engine = MakeEngine(OffloadPolicy::kAuto);
  Collector collector;
  const GenerationRequest request = helper_.Request(20, 200);
  engine->Submit(request, collector.Sink());
  ASSERT_TRUE(collector.WaitForUpdates(1));
  engine->BeginDrain();
  EXPECT_EQ(engine->Submit(request, collector.Sink()).outcome, SubmitOutcome::kDraining);
  EXPECT_TRUE(engine->WaitIdle(kPatienceUs));
  EXPECT_EQ(collector.tokens(), helper_.Expected(request));
  EXPECT_TRUE(engine->snapshot().draining);
}

TEST_F(EngineThreadTest, StoppingEndsOpenSequences) {
  Collector collector;
  {
    auto engine = MakeEngine(OffloadPolicy::kOff);
    engine->Submit(helper_.Request(20, 450), collector.Sink());
    engine->Submit(helper_.Request(500, 2), collector.Sink());
    EXPECT_TRUE(collector.WaitForUpdates(1));
  }
  EXPECT_EQ(collector.ends(), 2);
}

TEST_F(EngineThreadTest, StopsWithoutHavingStarted) {
  Collector collector;
  {
    auto engine =
        Engine::Create(Options(OffloadPolicy::kOff), &runner_, &base::SystemClock(), nullptr);
    engine->Submit(helper_.Request(20, 450), collector.Sink());
    EXPECT_FALSE(engine->WaitIdle(0));
  }
  EXPECT_EQ(collector.last().finish, FinishReason::kAbort);
  EXPECT_TRUE(absl::IsUnavailable(collector.last().error));
}

TEST_F(EngineThreadTest, ObserverSeesEverySteps) {
  int observed = 0;  // on the engine's thread until it is joined
  Collector collector;
  {
    auto engine = Engine::Create(Options(OffloadPolicy::kOff), &runner_, &base::SystemClock(),
                                 [&observed](const StepObservation&) { ++observed; });
    engine->Start();
    engine->Submit(helper_.Request(20, 25), collector.Sink());
    ASSERT_TRUE(collector.WaitForEnds(1));
  }
  EXPECT_EQ(observed, 25);
}

}  // namespace
}  // namespace tandem::gpu_worker
