#include "common/exchange/worker_side.h"

#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::exchange {

absl::StatusOr<std::unique_ptr<WorkerSide>> WorkerSide::Attach(shm::Region region) {
  if (region.size() < sizeof(RegionHeader)) {
    return absl::InvalidArgumentError("the shared region is smaller than its header");
  }
  RegionHeader header;
  std::memcpy(&header, region.data(), sizeof(header));
  TANDEM_RETURN_IF_ERROR(ValidateHeader(header, region.size()));
  return std::unique_ptr<WorkerSide>(new WorkerSide(header, std::move(region)));
}

WorkerSide::WorkerSide(const RegionHeader& header, shm::Region region)
    : header_(header),
      region_(std::move(region)),
      bells_(reinterpret_cast<Doorbells*>(region_.data() + header.doorbells_offset)) {
  handled_epoch_ = bells_->epoch.value.load(std::memory_order_acquire);
  handled_abort_ = bells_->abort_acked_epoch.value.load(std::memory_order_acquire);
}

WaitPolicy WorkerSide::IdlePolicy() const {
  WaitPolicy policy = shared_cores_.load() ? WaitPolicy::SharedCores() : WaitPolicy::OwnCores();
  // Between steps gpu_worker itself signals and always wakes; waking up is only for the heartbeat.
  policy.park_us = 200'000;
  return policy;
}

WaitPolicy WorkerSide::StepPolicy() const {
  const WaitPolicy policy =
      shared_cores_.load() ? WaitPolicy::SharedCores() : WaitPolicy::OwnCores();
  return header_.geometry.device_wakes != 0 ? policy : policy.WithoutWakes();
}

bool WorkerSide::AbortPending() const {
  return bells_->abort_epoch.value.load(std::memory_order_acquire) != handled_abort_;
}

void WorkerSide::Acknowledge(Word64& word, uint64_t epoch) {
  word.value.store(epoch, std::memory_order_release);
  bells_->ack_signal.value.fetch_add(1, std::memory_order_release);
  FutexWakeAll(bells_->ack_signal.value);
}

void WorkerSide::AcknowledgeAbort() {
  handled_abort_ = bells_->abort_epoch.value.load(std::memory_order_acquire);
  // The aborted step may not have been seen yet: it must not be taken afterwards.
  if (bells_->epoch.value.load(std::memory_order_acquire) == handled_abort_) {
    handled_epoch_ = handled_abort_;
  }
  Acknowledge(bells_->abort_acked_epoch, handled_abort_);
}

bool WorkerSide::ReadStep(uint64_t epoch) {
  for (int slot = 0; slot < kNumSlots; ++slot) {
    refusal_ = ReadSlot(header_, region_.data(), slot, epoch, &slots_[slot]);
    if (!refusal_.ok()) {
      return false;
    }
    next_layer_[slot] = 0;
  }
  return true;
}

bool WorkerSide::WaitForArming(uint64_t epoch, int64_t deadline_us) {
  const auto decided = [&] {
    return bells_->armed_epoch.value.load(std::memory_order_acquire) == epoch || AbortPending() ||
           bells_->epoch.value.load(std::memory_order_acquire) != epoch;
  };
  // gpu_worker arms at once after the acknowledgement or gives the step up.
  return WaitUntil(bells_->step_signal.value, decided, deadline_us, IdlePolicy()) &&
         bells_->armed_epoch.value.load(std::memory_order_acquire) == epoch && !AbortPending();
}

WorkerSide::StepEvent WorkerSide::WaitForStep(int64_t timeout_us) {
  const int64_t deadline_us = base::SystemClock().NowUs() + timeout_us;
  while (true) {
    Heartbeat();
    const auto something = [&] {
      return AbortPending() ||
             bells_->epoch.value.load(std::memory_order_acquire) != handled_epoch_ ||
             interrupts_.load(std::memory_order_acquire) != seen_interrupts_;
    };
    if (!WaitUntil(bells_->step_signal.value, something, deadline_us, IdlePolicy())) {
      return StepEvent::kNone;
    }
    seen_interrupts_ = interrupts_.load(std::memory_order_acquire);
    if (AbortPending()) {
      AcknowledgeAbort();
      continue;
    }
    const uint64_t epoch = bells_->epoch.value.load(std::memory_order_acquire);
    if (epoch == handled_epoch_) {
      return StepEvent::kNone;
    }
    handled_epoch_ = epoch;
    if (!ReadStep(epoch)) {
      Acknowledge(bells_->failed_epoch, epoch);
      return StepEvent::kRefused;
    }
    step_epoch_ = epoch;
    Acknowledge(bells_->acked_epoch, epoch);
    if (WaitForArming(epoch, base::SystemClock().NowUs() + 1'000'000)) {
      return StepEvent::kArmed;
    }
  }
}

bool WorkerSide::AbortRequested() const {
  return AbortPending() || bells_->epoch.value.load(std::memory_order_acquire) != step_epoch_;
}

bool WorkerSide::Finished() const {
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (!slots_[slot].rows.empty() &&
        next_layer_[slot] < static_cast<int32_t>(header_.geometry.num_layers)) {
      return false;
    }
  }
  return true;
}

int WorkerSide::PostedSlot() const {
  int best = -1;
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (slots_[slot].rows.empty() ||
        next_layer_[slot] >= static_cast<int32_t>(header_.geometry.num_layers) ||
        bells_->posted[slot].value.load(std::memory_order_acquire) <=
            static_cast<uint32_t>(next_layer_[slot])) {
      continue;
    }
    if (best < 0 || next_layer_[slot] < next_layer_[best]) {
      best = slot;
    }
  }
  return best;
}

WorkerSide::LayerWork WorkerSide::NextLayer(int64_t timeout_us) {
  Heartbeat();
  if (Finished()) {
    return {LayerWork::Kind::kFinished};
  }
  // Park on the slot that is sent next; a post of the other one is seen within a park's length.
  const bool first_is_next =
      slots_[1].rows.empty() || (!slots_[0].rows.empty() && next_layer_[0] <= next_layer_[1]);
  const std::atomic<uint32_t>& word = bells_->posted[first_is_next ? 0 : 1].value;
  int slot = -1;
  bool aborted = false;
  const auto something = [&] {
    aborted = AbortRequested();
    slot = PostedSlot();
    return aborted || slot >= 0;
  };
  const int64_t deadline_us = base::SystemClock().NowUs() + timeout_us;
  const bool ready = WaitUntil(word, something, deadline_us, StepPolicy());
  if (aborted) {
    if (AbortPending()) {
      AcknowledgeAbort();
    }
    return {LayerWork::Kind::kAborted};
  }
  if (!ready) {
    return {LayerWork::Kind::kNone};
  }
  return {LayerWork::Kind::kLayer, slot, next_layer_[slot]};
}

bool WorkerSide::SignalDone(int slot, int32_t layer) {
  Heartbeat();
  auto expected = static_cast<uint32_t>(layer);
  next_layer_[slot] = layer + 1;
  // Not a plain store: a release by gpu_worker must not be overwritten.
  const bool signalled = bells_->done[slot].value.compare_exchange_strong(
      expected, static_cast<uint32_t>(layer) + 1, std::memory_order_acq_rel);
  if (signalled && header_.geometry.device_wakes != 0) {
    FutexWakeAll(bells_->done[slot].value);
  }
  return signalled;
}

void WorkerSide::Interrupt() {
  interrupts_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(bells_->step_signal.value);
}

}  // namespace tandem::exchange
