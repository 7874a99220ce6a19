#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/exchange/layout.h"
#include "common/exchange/step_descriptor.h"
#include "common/exchange/wait.h"
#include "common/shm/region.h"

namespace tandem::exchange {

// cpu_attention_worker's end of the region. One thread at a time calls WaitForStep, NextLayer and
// SignalDone; the rest may be called from any thread. It beats the heartbeat on that thread, so
// that a stuck worker is seen as such.
class WorkerSide {
 public:
  // Validates the header of a mapped region and takes over nothing of what stands in the words: a
  // step that an earlier process was in is not continued. Never writes to the pool.
  static absl::StatusOr<std::unique_ptr<WorkerSide>> Attach(shm::Region region);

  const RegionHeader& header() const { return header_; }
  const shm::Region& region() const { return region_; }
  std::byte* pool() const { return region_.data() + header_.pool_offset; }
  const std::byte* q(int slot) const { return region_.data() + header_.slots[slot].q_offset; }
  const std::byte* k(int slot) const { return region_.data() + header_.slots[slot].k_offset; }
  const std::byte* v(int slot) const { return region_.data() + header_.slots[slot].v_offset; }
  std::byte* o(int slot) const { return region_.data() + header_.slots[slot].o_offset; }

  enum class StepEvent {
    kNone,     // nothing within the time
    kArmed,    // step() is to be served
    kRefused,  // a descriptor failed its check; refusal() says why
  };
  // Acknowledges aborts while it waits. The first call after a step waits by the policy; once one
  // has found nothing, the next ones park at once.
  StepEvent WaitForStep(int64_t timeout_us);
  uint64_t epoch() const { return step_epoch_; }
  const StepSlot& slot(int index) const { return slots_[index]; }
  const absl::Status& refusal() const { return refusal_; }

  struct LayerWork {
    enum class Kind {
      kLayer,     // Q, K and V rows of (slot, layer) stand in the region
      kNone,      // nothing within the time; the step goes on
      kFinished,  // every layer of every used slot was signalled
      kAborted,   // the step is over; nothing of it may be written any more
    };
    Kind kind = Kind::kNone;
    int slot = 0;
    int32_t layer = 0;
  };
  // The next posted layer, in the order in which the device sends: layer by layer, A before B; a
  // slot that runs ahead is served as it comes.
  LayerWork NextLayer(int64_t timeout_us);
  // What NextLayer gives after (slot, layer), the layer it gave last, when the device keeps to its
  // order; kFinished: nothing.
  LayerWork LayerAfter(int slot, int32_t layer) const;
  // Whether NextLayer would return at once.
  bool LayerWaits() const { return PostedSlot() >= 0 || AbortRequested(); }
  // Before SignalDone of the same layer; times of base::SystemClock.
  void RecordTiming(int slot, int32_t layer, int64_t begin_us, int64_t end_us);
  // O rows of (slot, layer) are written. False: the step was released meanwhile; NextLayer will
  // say so.
  bool SignalDone(int slot, int32_t layer);
  // Whether the running step was aborted or replaced; cheap enough to ask between tasks.
  bool AbortRequested() const;

  void SetPolicy(const WaitPolicy& policy) { shared_cores_.store(policy.spins == 0); }
  void Heartbeat() { bells_->cpu_heartbeat.value.fetch_add(1, std::memory_order_relaxed); }
  // Wakes a waiting WaitForStep (to stop the thread).
  void Interrupt();

 private:
  WorkerSide(const RegionHeader& header, shm::Region region);
  bool AbortPending() const;
  void AcknowledgeAbort();
  void Acknowledge(Word64& word, uint64_t epoch);
  bool ReadStep(uint64_t epoch);
  bool TakeStep(uint64_t epoch);
  bool Finished() const;
  // Who has not posted its part of the slot's next layer; -1: all have.
  int OwingPoster(int slot) const;
  // The slot to serve next, of those posted; -1: none.
  int PostedSlot() const;
  WaitPolicy IdlePolicy() const;
  WaitPolicy StepPolicy() const;

  const RegionHeader header_;
  const shm::Region region_;
  Doorbells* const bells_;
  std::atomic<bool> shared_cores_{true};
  std::atomic<uint32_t> interrupts_{0};
  uint32_t seen_interrupts_ = 0;
  bool stalled_ = false;        // no layer came in the last wait inside a step
  bool idle_ = false;           // no step came in the last wait: the next one parks at once
  uint64_t handled_epoch_ = 0;  // newest that was taken, refused or aborted
  uint64_t handled_abort_ = 0;
  uint64_t step_epoch_ = 0;
  bool awaits_arming_ = false;  // step_epoch_ was acknowledged, and gpu_worker is to arm it
  StepSlot slots_[kNumSlots];
  int32_t next_layer_[kNumSlots] = {0, 0};
  absl::Status refusal_;
};

}  // namespace tandem::exchange
