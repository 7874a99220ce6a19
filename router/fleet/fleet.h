#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/fleet/model_info.h"
#include "router/policy/policy.h"

namespace tandem::router {

class Fleet;

// One sequence's place at a worker; gives it back when it goes. The fleet outlives it.
class WorkerLease {
 public:
  WorkerLease() = default;
  WorkerLease(WorkerLease&& other) noexcept;
  WorkerLease& operator=(WorkerLease&& other) noexcept;
  ~WorkerLease() { Release(); }

  bool held() const { return fleet_ != nullptr; }
  int worker() const { return worker_; }
  // The worker gave its first token; counted once.
  void OnFirstToken();
  // The connection broke, or the worker refuses: no new sequence goes there until its health was
  // seen again.
  void ReportLost();
  void Release();

 private:
  friend class Fleet;
  WorkerLease(Fleet* fleet, int worker, uint64_t epoch)
      : fleet_(fleet), worker_(worker), epoch_(epoch) {}

  Fleet* fleet_ = nullptr;
  int worker_ = -1;
  uint64_t epoch_ = 0;
  bool waiting_ = true;
};

// The table of workers: which are ready, what they serve, how much this router has at each.
// Thread-safe. Callbacks are called without its lock held.
class Fleet {
 public:
  // `max_waiters` bounds the sequences that wait for a worker to come back.
  Fleet(std::vector<std::string> addresses, std::unique_ptr<Policy> policy, int max_waiters);

  // Called with the index of a worker whose health should be looked at afresh. Set before use.
  void set_on_suspect(std::function<void(int)> on_suspect) { on_suspect_ = std::move(on_suspect); }
  // Called with the model of each worker that becomes ready, before it is. Set before use.
  void set_on_model(std::function<void(const ModelInfo&)> on_model) {
    on_model_ = std::move(on_model);
  }

  void SetReady(int worker, ModelInfo model);
  // The worker is there but takes nothing (it drains, or has not begun).
  void SetRefusing(int worker);
  // The worker is away, for all we know.
  void SetLost(int worker);

  // A ready worker of the model by the policy; nothing when there is none.
  WorkerLease Acquire(const PickRequest& request);
  // Calls `wake(true)` when a worker of the model is or becomes ready; or, with `unless_refused`,
  // `wake(false)` when all of its workers refuse. Once, from any thread. Returns nothing when too
  // many wait already.
  std::optional<uint64_t> WaitForReady(int model_id, bool unless_refused,
                                       std::function<void(bool ready)> wake);
  // After this `wake` is not called, unless it is running just now.
  void CancelWait(uint64_t waiter);

  // The model of that name; an empty name means the only one. Null: unknown.
  std::shared_ptr<const ModelInfo> FindModel(std::string_view name) const;
  // In the order of the workers, each once. Workers that are away count: their model is still
  // known.
  std::vector<std::shared_ptr<const ModelInfo>> Models() const;
  bool AnyReady() const;
  std::vector<WorkerView> Workers() const;
  const std::string& address(int worker) const { return slots_[worker].address; }
  int size() const { return static_cast<int>(slots_.size()); }

 private:
  friend class WorkerLease;

  struct Slot {
    std::string address;
    std::shared_ptr<const ModelInfo> model;
    WorkerView view;
    bool refusing = false;
    uint64_t epoch = 0;  // grows each time the worker becomes ready
  };
  struct Waiter {
    int model_id = -1;
    bool unless_refused = false;
    std::function<void(bool)> wake;
  };

  void Release(int worker, bool waiting);
  void FirstToken(int worker);
  void ReportLost(int worker, uint64_t epoch);
  int ModelIdOf(const ModelInfo& model);
  bool AnyReadyOf(int model_id) const;
  bool AllRefuse(int model_id) const;
  // Takes out the waiters that a change concerns.
  std::vector<std::function<void(bool)>> TakeWaiters(int model_id, bool ready);

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<WorkerView> views_;  // scratch of Acquire
  std::unique_ptr<Policy> policy_;
  std::map<uint64_t, Waiter> waiters_;
  uint64_t next_waiter_ = 1;
  size_t max_waiters_;
  int next_model_id_ = 0;
  std::function<void(int)> on_suspect_;
  std::function<void(const ModelInfo&)> on_model_;
};

}  // namespace tandem::router
