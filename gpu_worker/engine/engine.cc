#include "gpu_worker/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "gpu_worker/cost_model/cost_model.h"
#include "gpu_worker/engine/cost_measurement.h"
#include "gpu_worker/engine/engine_core.h"

namespace tandem::gpu_worker {
namespace {

// Longest sleep while sequences are open; everything that lets them go on wakes the thread at once,
// this only bounds what a forgotten wake-up could cost.
constexpr int64_t kLongestSleepUs = 200'000;

class ThreadedEngine : public Engine {
 public:
  ThreadedEngine(const EngineOptions& options, StepRunner* runner, const base::Clock* clock,
                 std::function<void(const StepObservation&)> observer)
      : options_(options),
        runner_(runner),
        clock_(clock),
        observer_(std::move(observer)),
        first_guess_(MakeRooflineCostModel(runner->MeasureRates())),
        core_(options, runner->limits(), first_guess_),
        costs_(options, runner->limits(), first_guess_) {}

  ~ThreadedEngine() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
    std::unique_lock lock(mutex_);
    core_.EndAll(absl::UnavailableError("the worker is stopping"));
    Deliver(lock);
  }

  void Start() override {
    const std::scoped_lock lock(mutex_);
    TANDEM_CHECK(!thread_.joinable());
    thread_ = std::thread([this] { Loop(); });
  }

  SubmitResult Submit(GenerationRequest request, UpdateSink sink) override {
    SubmitResult result;
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) {
        result.outcome = SubmitOutcome::kStopped;
        result.message = "the worker is stopping";
        return result;
      }
      result = core_.Submit(std::move(request), clock_->NowUs());
      if (result.outcome == SubmitOutcome::kAccepted) {
        sinks_[result.sequence_id] = std::make_shared<UpdateSink>(std::move(sink));
        signalled_ = true;
      }
    }
    wake_.notify_one();
    return result;
  }

  void Cancel(uint64_t sequence_id) override {
    Tell([&] {
      core_.Cancel(sequence_id);
      sinks_.erase(sequence_id);
    });
  }
  void OnCpuWorkerUp() override {
    Tell([&] { core_.OnCpuWorkerUp(); });
  }
  void OnCpuWorkerDown() override {
    Tell([&] { core_.OnCpuWorkerDown(clock_->NowUs()); });
  }
  void DescribeCpuWorker(const std::string& description) override {
    Tell([&] { costs_.SetCpuWorker(description); });
  }
  void OnCpuBlocksReady(int32_t num_blocks) override {
    Tell([&] { core_.OnCpuBlocksReady(num_blocks); });
  }
  void BeginDrain() override {
    Tell([&] { core_.BeginDrain(); });
  }

  bool WaitIdle(int64_t timeout_us) override {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return IsIdle(); });
  }

  EngineSnapshot snapshot() const override {
    const std::scoped_lock lock(mutex_);
    return core_.snapshot(clock_->NowUs());
  }

 private:
  template <typename Change>
  void Tell(const Change& change) {
    {
      const std::scoped_lock lock(mutex_);
      change();
      signalled_ = true;
    }
    wake_.notify_one();
    idle_.notify_all();
  }

  bool IsIdle() const { return core_.idle() && sinks_.empty() && !delivering_; }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      signalled_ = false;
      const StepInput* input = core_.PlanStep(clock_->NowUs());
      LogChanges();
      Deliver(lock);
      if (input != nullptr) {
        RunStep(*input, lock);
        Deliver(lock);
        costs_.OnWork(clock_->NowUs());
      } else if (!MeasureCosts(lock)) {
        Sleep(lock);
      }
    }
  }

  // Degraded states come and go in the log.
  void LogChanges() {
    const bool paused = core_.offload_paused(clock_->NowUs());
    if (std::exchange(was_paused_, paused) != paused) {
      base::LogWarning(paused ? "offloading pauses: it was slower than the device alone"
                              : "offloading is tried again");
    }
    const bool given_up = core_.cpu_worker_given_up();
    if (std::exchange(was_given_up_, given_up) != given_up) {
      base::LogWarning(given_up ? "CPU attention worker given up: its sequences are recomputed"
                                : "CPU attention worker is back");
    }
  }

  // One synthetic step of the cost tables, when nothing else is to do; false: none is due.
  bool MeasureCosts(std::unique_lock<std::mutex>& lock) {
    const int64_t now_us = clock_->NowUs();
    if (!IsIdle() || signalled_ ||
        !costs_.IsDue(
            {now_us, core_.uses_cpu_tier(), core_.cpu_usable(now_us), core_.cpu_blocks_ready()})) {
      return false;
    }
    if (StepInput* step = costs_.Next(); step != nullptr) {
      step->epoch = core_.TakeEpoch();
      lock.unlock();
      const absl::StatusOr<StepOutput> output = runner_->Run(*step);
      lock.lock();
      costs_.Record(output);
    }
    if (std::shared_ptr<const CostModel> model = costs_.TakeModel(); model != nullptr) {
      core_.ReplaceCostModel(std::move(model));
    }
    return true;
  }

  // The lock is not held while the step runs.
  void RunStep(const StepInput& input, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const absl::StatusOr<StepOutput> output = runner_->Run(input);
    lock.lock();
    const int64_t now_us = clock_->NowUs();
    if (output.ok()) {
      core_.Commit(*output, now_us);
      const StepObservation observation = core_.last_observation();
      if (observer_) {
        lock.unlock();
        observer_(observation);
        lock.lock();
      }
    } else {
      core_.Abort(output.status(), now_us);
      base::LogWarning("step aborted", {{"reason", output.status().ToString()},
                                        {"mode", StepModeName(input.mode)},
                                        {"epoch", input.epoch}});
    }
    if (options_.check_invariants_each_step) {
      if (const absl::Status status = core_.CheckInvariants(); !status.ok()) {
        base::CheckFailed(__FILE__, __LINE__, status.ToString());
      }
    }
  }

  // Calls the sinks of what happened, without the lock.
  void Deliver(std::unique_lock<std::mutex>& lock) {
    std::vector<std::pair<std::shared_ptr<UpdateSink>, GenerationUpdate>> calls;
    for (auto& [id, update] : core_.TakeUpdates()) {
      const auto it = sinks_.find(id);
      if (it == sinks_.end()) {
        continue;  // cancelled
      }
      const bool is_last = update.finish != FinishReason::kNone;
      calls.emplace_back(it->second, std::move(update));
      if (is_last) {
        sinks_.erase(it);
      }
    }
    if (!calls.empty()) {
      delivering_ = true;
      lock.unlock();
      for (auto& [sink, update] : calls) {
        (*sink)(std::move(update));
      }
      calls.clear();
      lock.lock();
      delivering_ = false;
    }
    if (IsIdle()) {
      idle_.notify_all();
    }
  }

  void Sleep(std::unique_lock<std::mutex>& lock) {
    const auto is_woken = [this] { return signalled_ || stopping_; };
    if (core_.idle() && !costs_.is_pending()) {
      wake_.wait(lock, is_woken);
      return;
    }
    int64_t sleep_us = kLongestSleepUs;
    if (const int64_t wake_us = core_.NextWakeUs(clock_->NowUs()); wake_us > 0) {
      sleep_us = std::clamp<int64_t>(wake_us - clock_->NowUs(), 1'000, kLongestSleepUs);
    }
    wake_.wait_for(lock, std::chrono::microseconds(sleep_us), is_woken);
  }

  const EngineOptions options_;
  StepRunner* const runner_;
  const base::Clock* const clock_;
  const std::function<void(const StepObservation&)> observer_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // of the thread: signalled_ or stopping_ became true
  std::condition_variable idle_;
  bool signalled_ = false;
  bool stopping_ = false;
  bool delivering_ = false;
  bool was_paused_ = false;
  bool was_given_up_ = false;
  const std::shared_ptr<const CostModel> first_guess_;
  EngineCore core_;
  CostMeasurement costs_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<UpdateSink>> sinks_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> Engine::Create(const EngineOptions& options, StepRunner* runner,
                                       const base::Clock* clock,
                                       std::function<void(const StepObservation&)> observer) {
  return std::make_unique<ThreadedEngine>(options, runner, clock, std::move(observer));
}

}  // namespace tandem::gpu_worker
