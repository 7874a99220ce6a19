#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "gpu_worker/engine/engine.h"

namespace tandem::gpu_worker {

// An engine whose updates the test writes. Thread-safe.
class FakeEngine : public Engine {
 public:
  void Start() override {}

  SubmitResult Submit(GenerationRequest request, UpdateSink sink) override {
    const std::lock_guard lock(mutex_);
    if (snapshot_.draining) {
      return {.outcome = SubmitOutcome::kDraining, .message = "the worker is draining"};
    }
    if (refusal_.outcome != SubmitOutcome::kAccepted) {
      return refusal_;
    }
    const uint64_t id = ++last_id_;
    requests_.push_back(std::move(request));
    sinks_[id] = std::move(sink);
    changed_.notify_all();
    return {.sequence_id = id};
  }

  void Cancel(uint64_t sequence_id) override {
    const std::lock_guard lock(mutex_);
    sinks_.erase(sequence_id);
    cancelled_.push_back(sequence_id);
    changed_.notify_all();
  }

  void OnCpuWorkerUp() override {}
  void OnCpuWorkerDown() override {}
  void OnCpuBlocksReady(int32_t) override {}

  void BeginDrain() override {
    const std::lock_guard lock(mutex_);
    snapshot_.draining = true;
  }

  bool WaitIdle(int64_t timeout_us) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                             [this] { return sinks_.empty(); });
  }

  EngineSnapshot snapshot() const override {
    const std::lock_guard lock(mutex_);
    EngineSnapshot copy = snapshot_;
    copy.gpu_decode = static_cast<int32_t>(sinks_.size());
    return copy;
  }

  // The n-th request, once it is there; false after `kPatience`.
  bool WaitForRequests(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return requests_.size() >= count; });
  }
  bool WaitForCancel(uint64_t sequence_id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      return std::find(cancelled_.begin(), cancelled_.end(), sequence_id) != cancelled_.end();
    });
  }
  // Sends an update; one with a finish or an error ends the sequence. False: no such sequence.
  bool Send(uint64_t sequence_id, const GenerationUpdate& update) {
    UpdateSink sink;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sinks_.find(sequence_id);
      if (found == sinks_.end()) {
        return false;
      }
      sink = found->second;
      if (update.finish != FinishReason::kNone || !update.error.ok()) {
        sinks_.erase(found);
        changed_.notify_all();
      }
    }
    sink(update);
    return true;
  }
  GenerationRequest request(size_t index) const {
    const std::lock_guard lock(mutex_);
    return requests_[index];
  }
  size_t cancel_count() const {
    const std::lock_guard lock(mutex_);
    return cancelled_.size();
  }
  void RefuseWith(SubmitResult refusal) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(refusal);
  }
  void SetSnapshot(const EngineSnapshot& snapshot) {
    const std::lock_guard lock(mutex_);
    snapshot_ = snapshot;
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_id_ = 0;
  SubmitResult refusal_;
  EngineSnapshot snapshot_;
  std::vector<GenerationRequest> requests_;
  std::map<uint64_t, UpdateSink> sinks_;
  std::vector<uint64_t> cancelled_;
};

}  // namespace tandem::gpu_worker
