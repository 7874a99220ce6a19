#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/exchange/layout.h"
#include "common/exchange/wait.h"
#include "common/shm/region.h"

namespace tandem::exchange {

// One slot's part of a step, as gpu_worker plans it.
struct SlotRow {
  int32_t context_tokens = 0;            // new token included
  std::span<const int32_t> block_table;  // CPU block ids, ceil(context_tokens / 128) of them
  uint64_t sequence_id = 0;              // this and the next: for the worker's log
  std::string_view request_id;
};

enum class WaitResult { kDone, kReleased, kTimedOut };

// gpu_worker's end of the region. It creates the region, so one object lives through every
// attachment of a CPU attention worker. Thread rules: BeginStep, EndStep, Abort* by the engine's
// step thread; Post and WaitDone by device stream threads; Release by any thread.
class DeviceSide {
 public:
  // Creates the sealed memfd ("tandem-...") and lays it out. ResourceExhausted when the memory is
  // not there.
  static absl::StatusOr<std::unique_ptr<DeviceSide>> Create(const Geometry& geometry);
  virtual ~DeviceSide() = default;

  virtual const RegionHeader& header() const = 0;
  virtual const shm::Region& region() const = 0;
  virtual std::byte* pool() = 0;  // CPU KV pool, for moves between the pools

  // Writes both descriptors (empty: slot unused), publishes the epoch, waits for the worker's ack,
  // resets the words and arms the step. InvalidArgument: rows or tables exceed the slot.
  // DeadlineExceeded / Unavailable: no ack (dead worker or Release). Internal: the worker refused
  // the descriptor.
  virtual absl::Status BeginStep(uint64_t epoch, std::span<const SlotRow> slot_a,
                                 std::span<const SlotRow> slot_b, float scale,
                                 int64_t timeout_us) = 0;

  virtual std::byte* q(int slot) = 0;  // [max_rows, num_q_heads, head_dim]
  virtual std::byte* k(int slot) = 0;
  virtual std::byte* v(int slot) = 0;
  virtual const std::byte* o(int slot) const = 0;

  // Q, K and V rows of `layer` stand in the slot, those of this poster's heads: release-writes its
  // posted = layer + 1.
  virtual void PostPart(int slot, int32_t layer, int poster) = 0;
  // Where there is one.
  void Post(int slot, int32_t layer) { PostPart(slot, layer, 0); }
  // Until O rows of `layer` stand in the slot.
  virtual WaitResult WaitDone(int slot, int32_t layer, int64_t timeout_us) = 0;
  // When the worker computed a layer that WaitDone found done; zeros when what stands there makes
  // no sense (it is the worker's word and untrusted).
  virtual LayerTiming layer_timing(int slot, int32_t layer) const = 0;

  // Frees every waiter of the running step with kReleased, and fails BeginStep of it: the worker
  // died or hangs.
  virtual void Release() = 0;
  // Tells a living worker to leave `epoch` and waits until it has; DeadlineExceeded: it must be
  // killed before any CPU block is reused. Also clears a Release.
  virtual absl::Status AbortStep(uint64_t epoch, int64_t timeout_us) = 0;
  // After the worker is known to be dead (socket at its end): clears a Release, so that a new one
  // can attach.
  virtual void ResetAfterDeath() = 0;

  // Of this side's waits. The start value parks at once where the device wakes (the host, which
  // computes on the worker's cores) and spins where it cannot.
  virtual void SetPolicy(const WaitPolicy& policy) = 0;

  virtual void Heartbeat() = 0;
  virtual uint64_t peer_heartbeat() const = 0;
};

}  // namespace tandem::exchange
