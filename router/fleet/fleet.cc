#include "router/fleet/fleet.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

WorkerLease::WorkerLease(WorkerLease&& other) noexcept { *this = std::move(other); }

WorkerLease& WorkerLease::operator=(WorkerLease&& other) noexcept {
  if (this != &other) {
    Release();
    fleet_ = std::exchange(other.fleet_, nullptr);
    worker_ = other.worker_;
    epoch_ = other.epoch_;
    waiting_ = other.waiting_;
  }
  return *this;
}

void WorkerLease::OnFirstToken() {
  if (fleet_ != nullptr && waiting_) {
    waiting_ = false;
    fleet_->FirstToken(worker_);
  }
}

void WorkerLease::ReportLost() {
  if (fleet_ != nullptr) {
    fleet_->ReportLost(worker_, epoch_);
  }
}

void WorkerLease::Release() {
  if (fleet_ != nullptr) {
    std::exchange(fleet_, nullptr)->Release(worker_, waiting_);
  }
}

Fleet::Fleet(std::vector<std::string> addresses, std::unique_ptr<Policy> policy, int max_waiters)
    : policy_(std::move(policy)), max_waiters_(static_cast<size_t>(max_waiters)) {
  slots_.resize(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    slots_[i].address = std::move(addresses[i]);
    slots_[i].view.index = static_cast<int>(i);
  }
}

int Fleet::ModelIdOf(const ModelInfo& model) {
  for (const Slot& slot : slots_) {
    if (slot.model && slot.model->served_names == model.served_names &&
        slot.model->tokenizer_sha256 == model.tokenizer_sha256 &&
        slot.model->vocab_size == model.vocab_size) {
      return slot.model->id;
    }
  }
  return next_model_id_++;
}

void Fleet::SetReady(int worker, ModelInfo model) {
  if (on_model_) {
    on_model_(model);
  }
  std::vector<std::function<void(bool)>> wakes;
  {
    std::lock_guard lock(mutex_);
    Slot& slot = slots_[worker];
    model.id = ModelIdOf(model);
    slot.model = std::make_shared<const ModelInfo>(std::move(model));
    slot.view.model_id = slot.model->id;
    slot.view.ready = true;
    slot.refusing = false;
    ++slot.epoch;
    wakes = TakeWaiters(slot.view.model_id, /*ready=*/true);
  }
  for (const auto& wake : wakes) {
    wake(true);
  }
}

std::vector<std::function<void(bool)>> Fleet::TakeWaiters(int model_id, bool ready) {
  std::vector<std::function<void(bool)>> wakes;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->second.model_id == model_id && (ready || it->second.unless_refused)) {
      wakes.push_back(std::move(it->second.wake));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  return wakes;
}

bool Fleet::AnyReadyOf(int model_id) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.view.ready && slot.view.model_id == model_id;
  });
}

bool Fleet::AllRefuse(int model_id) const {
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.view.model_id != model_id || slot.refusing;
  });
}

void Fleet::SetRefusing(int worker) {
  std::vector<std::function<void(bool)>> wakes;
  {
    std::lock_guard lock(mutex_);
    Slot& slot = slots_[worker];
    slot.view.ready = false;
    slot.refusing = true;
    if (AllRefuse(slot.view.model_id)) {
      wakes = TakeWaiters(slot.view.model_id, /*ready=*/false);
    }
  }
  for (const auto& wake : wakes) {
    wake(false);
  }
}

void Fleet::SetLost(int worker) {
  std::lock_guard lock(mutex_);
  slots_[worker].view.ready = false;
  slots_[worker].refusing = false;
}

WorkerLease Fleet::Acquire(const PickRequest& request) {
  std::lock_guard lock(mutex_);
  views_.clear();
  for (const Slot& slot : slots_) {
    views_.push_back(slot.view);
  }
  const std::vector<WorkerView> candidates = Filter(views_, request);
  if (candidates.empty()) {
    return WorkerLease();
  }
  Slot& slot = slots_[policy_->Pick(candidates)];
  ++slot.view.inflight;
  ++slot.view.waiting;
  return WorkerLease(this, slot.view.index, slot.epoch);
}

std::optional<uint64_t> Fleet::WaitForReady(int model_id, bool unless_refused,
                                            std::function<void(bool)> wake) {
  bool ready = false;
  {
    std::lock_guard lock(mutex_);
    ready = AnyReadyOf(model_id);
    if (!ready && !(unless_refused && AllRefuse(model_id))) {
      if (waiters_.size() >= max_waiters_) {
        return std::nullopt;
      }
      waiters_.emplace(next_waiter_, Waiter{model_id, unless_refused, std::move(wake)});
      return next_waiter_++;
    }
  }
  wake(ready);
  return 0;
}

void Fleet::CancelWait(uint64_t waiter) {
  std::lock_guard lock(mutex_);
  waiters_.erase(waiter);
}

std::shared_ptr<const ModelInfo> Fleet::FindModel(std::string_view name) const {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const ModelInfo> found;
  for (const Slot& slot : slots_) {
    if (!slot.model) {
      continue;
    }
    const auto& names = slot.model->served_names;
    if (name.empty()) {
      if (found && found->id != slot.model->id) {
        return nullptr;
      }
    } else if (std::find(names.begin(), names.end(), name) == names.end()) {
      continue;
    }
    // One that is ready stands for its model: a restarted worker may have other limits.
    if (!found || slot.view.ready) {
      found = slot.model;
      if (!name.empty() && slot.view.ready) {
        break;
      }
    }
  }
  return found;
}

std::vector<std::shared_ptr<const ModelInfo>> Fleet::Models() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const ModelInfo>> models;
  for (const Slot& slot : slots_) {
    const bool listed = std::any_of(models.begin(), models.end(), [&](const auto& model) {
      return !slot.model || model->id == slot.model->id;
    });
    if (slot.model && !listed) {
      models.push_back(slot.model);
    }
  }
  return models;
}

bool Fleet::AnyReady() const {
  std::lock_guard lock(mutex_);
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.view.ready; });
}

std::vector<WorkerView> Fleet::Workers() const {
  std::lock_guard lock(mutex_);
  std::vector<WorkerView> views;
  for (const Slot& slot : slots_) {
    views.push_back(slot.view);
  }
  return views;
}

void Fleet::Release(int worker, bool waiting) {
  std::lock_guard lock(mutex_);
  --slots_[worker].view.inflight;
  slots_[worker].view.waiting -= waiting ? 1 : 0;
}

void Fleet::FirstToken(int worker) {
  std::lock_guard lock(mutex_);
  --slots_[worker].view.waiting;
}

void Fleet::ReportLost(int worker, uint64_t epoch) {
  {
    std::lock_guard lock(mutex_);
    Slot& slot = slots_[worker];
    if (slot.epoch != epoch || !slot.view.ready) {
      return;
    }
    slot.view.ready = false;
    slot.refusing = false;
  }
  if (on_suspect_) {
    on_suspect_(worker);
  }
}

}  // namespace tandem::router
