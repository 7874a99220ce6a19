#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/exchange/worker_side.h"
#include "common/shm/descriptor_socket.h"
#include "common/shm/region.h"
#include "common/topology/topology.h"
#include "cpu_attention_worker/kv_store/pool_toucher.h"
#include "cpu_attention_worker/server/step_loop.h"

namespace tandem::cpu_attention_worker {

// What one process decided at its start. Everything outlives every attachment.
struct Placed {
  const topology::Topology* topology = nullptr;
  topology::Placement placement;
  attention::Isa isa = attention::Isa::kScalar;
  std::optional<DType> kv_dtype;  // of every pool; nothing: any
  ThreadTeam* team = nullptr;
  WorkerMetrics* metrics = nullptr;
};

// One attached region: its step loop, the touching of its pool, and what the peer is to be told.
class Attachment {
 public:
  struct Event {
    enum class Kind { kExtentsReady, kWarning, kStepFailed };
    Kind kind = Kind::kWarning;
    uint32_t extents = 0;
    uint64_t epoch = 0;
    std::string message;
  };

  // Validates the region and starts serving. `first`: blocks become ready as extents are
  // touched; else all of them are at once.
  static absl::StatusOr<std::unique_ptr<Attachment>> Start(shm::Region region, bool first,
                                                           const Placed& placed);
  ~Attachment();

  // The next event for the peer; nothing within the time.
  std::optional<Event> WaitEvent(int64_t timeout_us);
  void SetPolicy(const exchange::WaitPolicy& policy);
  // Takes no new step; ended() turns true when the running one is over.
  void BeginDrain() { loop_->RefuseNewSteps(); }
  bool ended() const { return loop_->ended(); }
  int64_t progress_us() const { return loop_->progress_us(); }
  // Lets a running step finish for at most `timeout_us`.
  void Stop(int64_t timeout_us) { loop_->Stop(timeout_us); }

  bool memory_bound() const { return toucher_ != nullptr && toucher_->memory_bound(); }
  std::string page_kind() const;

 private:
  Attachment(std::unique_ptr<exchange::WorkerSide> side, const Placed& placed);
  void Push(Event event);
  void OnRefused(uint64_t epoch, const std::string& message);
  void OnExtentsReady(uint32_t count, bool announce);
  void StartToucher(bool first);
  void ReportPool();
  void Warn(const std::string& message);

  const Placed placed_;
  std::unique_ptr<exchange::WorkerSide> side_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::deque<Event> events_;
  uint32_t extents_total_ = 0;
  uint64_t refused_ = 0;         // steps; on the loop's thread
  int64_t refused_told_us_ = 0;  // 0: never
  std::unique_ptr<StepLoop> loop_;
  std::unique_ptr<PoolToucher> toucher_;
};

}  // namespace tandem::cpu_attention_worker
