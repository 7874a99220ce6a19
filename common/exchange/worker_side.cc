#include "common/exchange/worker_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::exchange {
namespace {

// In a step whose device posts nothing: a stopped process, a debugger.
constexpr int64_t kStalledParkUs = 20'000;

}  // namespace

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
  // Of a process that died asleep; only this side sleeps on these words.
  bells_->step_signal.parked.store(0, std::memory_order_relaxed);
  for (auto& slot : bells_->posted) {
    for (WaitWord& word : slot) {
      word.parked.store(0, std::memory_order_relaxed);
    }
  }
}

WaitPolicy WorkerSide::IdlePolicy() const {
  const bool park = idle_ || shared_cores_.load();
  WaitPolicy policy = park ? WaitPolicy::SharedCores() : WaitPolicy::OwnCores();
  // Between steps gpu_worker itself signals and always wakes; waking up is only for the heartbeat.
  policy.park_us = 200'000;
  return policy;
}

WaitPolicy WorkerSide::StepPolicy() const {
  if (stalled_) {
    return {0, 0, kStalledParkUs};
  }
  const WaitPolicy policy =
      shared_cores_.load() ? WaitPolicy::SharedCores() : WaitPolicy::OwnCores();
  return header_.geometry.device_wakes != 0 ? policy : policy.WithoutWakes();
}

bool WorkerSide::AbortPending() const {
  return bells_->abort_epoch.value.load(std::memory_order_acquire) != handled_abort_;
}

void WorkerSide::Acknowledge(Word64& word, uint64_t epoch) {
  word.value.store(epoch, std::memory_order_release);
  IncrementAndWake(bells_->ack_signal);
}

void WorkerSide::AcknowledgeAbort() {
  handled_abort_ = bells_->abort_epoch.value.load(std::memory_order_acquire);
  awaits_arming_ = awaits_arming_ && step_epoch_ != handled_abort_;
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

WorkerSide::StepEvent WorkerSide::WaitForStep(int64_t timeout_us) {
  const int64_t deadline_us = base::SystemClock().NowUs() + timeout_us;
  while (true) {
    Heartbeat();
    const auto armed = [&] {
      return awaits_arming_ &&
             bells_->armed_epoch.value.load(std::memory_order_acquire) == step_epoch_;
    };
    const auto something = [&] {
      return AbortPending() ||
             bells_->epoch.value.load(std::memory_order_acquire) != handled_epoch_ || armed() ||
             interrupts_.load(std::memory_order_acquire) != seen_interrupts_;
    };
    const bool came = WaitUntil(bells_->step_signal, something, deadline_us, IdlePolicy());
    idle_ = !came;
    if (!came) {
      return StepEvent::kNone;
    }
    const uint32_t interrupts = interrupts_.load(std::memory_order_acquire);
    const bool interrupted = interrupts != seen_interrupts_;
    seen_interrupts_ = interrupts;
    if (AbortPending()) {
      AcknowledgeAbort();
    } else if (const uint64_t epoch = bells_->epoch.value.load(std::memory_order_acquire);
               epoch != handled_epoch_) {
      if (!TakeStep(epoch)) {
        return StepEvent::kRefused;
      }
    } else if (armed()) {
      awaits_arming_ = false;
      return StepEvent::kArmed;
    }
    // A step that was acknowledged is as good as begun. And however often the peer aborts, whoever
    // asked for this thread gets it.
    if ((interrupted && !awaits_arming_) || base::SystemClock().NowUs() >= deadline_us) {
      return StepEvent::kNone;
    }
  }
}

bool WorkerSide::TakeStep(uint64_t epoch) {
  handled_epoch_ = epoch;
  awaits_arming_ = false;
  if (!ReadStep(epoch)) {
    Acknowledge(bells_->failed_epoch, epoch);
    return false;
  }
  step_epoch_ = epoch;
  awaits_arming_ = true;
  stalled_ = false;
  Acknowledge(bells_->acked_epoch, epoch);
  return true;
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

int WorkerSide::OwingPoster(int slot) const {
  for (int poster = 0; poster < static_cast<int>(header_.geometry.num_posters); ++poster) {
    if (bells_->posted[slot][poster].value.load(std::memory_order_acquire) <=
        static_cast<uint32_t>(next_layer_[slot])) {
      return poster;
    }
  }
  return -1;
}

int WorkerSide::PostedSlot() const {
  int best = -1;
  for (int slot = 0; slot < kNumSlots; ++slot) {
    if (slots_[slot].rows.empty() ||
        next_layer_[slot] >= static_cast<int32_t>(header_.geometry.num_layers) ||
        OwingPoster(slot) >= 0) {
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
  // Park on the slot that is sent next, and the first device that owes its part of it; any other
  // post is seen within a park's length.
  const bool first_is_next =
      slots_[1].rows.empty() || (!slots_[0].rows.empty() && next_layer_[0] <= next_layer_[1]);
  const int sent_next = first_is_next ? 0 : 1;
  WaitWord& word = bells_->posted[sent_next][std::max(OwingPoster(sent_next), 0)];
  int slot = -1;
  bool aborted = false;
  const auto something = [&] {
    aborted = AbortRequested();
    slot = PostedSlot();
    return aborted || slot >= 0;
  };
  const int64_t deadline_us = base::SystemClock().NowUs() + timeout_us;
  const bool ready = WaitUntil(word, something, deadline_us, StepPolicy());
  stalled_ = !ready;
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

WorkerSide::LayerWork WorkerSide::LayerAfter(int slot, int32_t layer) const {
  LayerWork next{LayerWork::Kind::kFinished};
  for (int other = 0; other < kNumSlots; ++other) {
    const int32_t expected = other == slot ? layer + 1 : next_layer_[other];
    if (slots_[other].rows.empty() ||
        expected >= static_cast<int32_t>(header_.geometry.num_layers)) {
      continue;
    }
    if (next.kind == LayerWork::Kind::kFinished || expected < next.layer) {
      next = {LayerWork::Kind::kLayer, other, expected};
    }
  }
  return next;
}

void WorkerSide::RecordTiming(int slot, int32_t layer, int64_t begin_us, int64_t end_us) {
  const size_t index =
      static_cast<size_t>(slot) * header_.geometry.num_layers + static_cast<size_t>(layer);
  const LayerTiming timing = {static_cast<uint64_t>(begin_us), static_cast<uint64_t>(end_us)};
  std::memcpy(region_.data() + header_.timings_offset + index * sizeof(timing), &timing,
              sizeof(timing));
}

bool WorkerSide::SignalDone(int slot, int32_t layer) {
  Heartbeat();
  auto expected = static_cast<uint32_t>(layer);
  next_layer_[slot] = layer + 1;
  // Not a plain store: a release by gpu_worker must not be overwritten.
  const bool signalled = bells_->done[slot].value.compare_exchange_strong(
      expected, static_cast<uint32_t>(layer) + 1, std::memory_order_seq_cst);
  if (signalled && header_.geometry.device_wakes != 0) {
    WakeParked(bells_->done[slot]);
  }
  return signalled;
}

void WorkerSide::Interrupt() {
  interrupts_.fetch_add(1, std::memory_order_release);
  WakeAll(bells_->step_signal);
}

}  // namespace tandem::exchange
