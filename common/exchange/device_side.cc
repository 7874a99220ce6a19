#include "common/exchange/device_side.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/exchange/wait.h"

namespace tandem::exchange {
namespace {

int64_t Deadline(int64_t timeout_us) { return base::SystemClock().NowUs() + timeout_us; }

class DeviceSideImpl : public DeviceSide {
 public:
  DeviceSideImpl(const RegionHeader& header, shm::Region region)
      : header_(header),
        region_(std::move(region)),
        shared_cores_(header.geometry.device_wakes != 0) {
    std::memcpy(region_.data(), &header_, sizeof(header_));
    // A fresh memfd is all zero, which is each word's start value.
    bells_ = new (region_.data() + header_.doorbells_offset) Doorbells;
  }

  const RegionHeader& header() const override { return header_; }
  const shm::Region& region() const override { return region_; }
  std::byte* pool() override { return region_.data() + header_.pool_offset; }

  absl::Status BeginStep(uint64_t epoch, std::span<const SlotRow> slot_a,
                         std::span<const SlotRow> slot_b, float scale, int64_t timeout_us) override;
  std::byte* q(int slot) override { return region_.data() + header_.slots[slot].q_offset; }
  std::byte* k(int slot) override { return region_.data() + header_.slots[slot].k_offset; }
  std::byte* v(int slot) override { return region_.data() + header_.slots[slot].v_offset; }
  const std::byte* o(int slot) const override {
    return region_.data() + header_.slots[slot].o_offset;
  }
  void PostPart(int slot, int32_t layer, int poster) override;
  WaitResult WaitDone(int slot, int32_t layer, int64_t timeout_us) override;
  LayerTiming layer_timing(int slot, int32_t layer) const override;
  void Release() override;
  absl::Status AbortStep(uint64_t epoch, int64_t timeout_us) override;
  void SetPolicy(const WaitPolicy& policy) override {
    shared_cores_.store(policy.spins == 0, std::memory_order_relaxed);
  }
  void ResetAfterDeath() override { down_.store(false, std::memory_order_release); }
  void Heartbeat() override { bells_->gpu_heartbeat.value.fetch_add(1, std::memory_order_relaxed); }
  uint64_t peer_heartbeat() const override {
    return bells_->cpu_heartbeat.value.load(std::memory_order_acquire);
  }

 private:
  absl::Status WriteSlot(int slot, uint64_t epoch, std::span<const SlotRow> rows, float scale);
  bool ReleasedNow() const {
    return released_epoch_.load(std::memory_order_acquire) ==
           epoch_.load(std::memory_order_acquire);
  }
  void SignalWorker() { IncrementAndWake(bells_->step_signal); }
  WaitPolicy Policy() const {
    return shared_cores_.load(std::memory_order_relaxed) ? WaitPolicy::SharedCores()
                                                         : WaitPolicy::OwnCores();
  }

  const RegionHeader header_;
  const shm::Region region_;
  std::atomic<bool> shared_cores_;
  Doorbells* bells_ = nullptr;
  // Of the running step, and of the newest released one: a waiter of a released step is freed even
  // when it looks only after the next worker was attached.
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint64_t> released_epoch_{UINT64_MAX};
  std::atomic<bool> down_{false};
};

absl::Status DeviceSideImpl::WriteSlot(int slot, uint64_t epoch, std::span<const SlotRow> rows,
                                       float scale) {
  const Geometry& geometry = header_.geometry;
  const RegionHeader::Slot& place = header_.slots[slot];
  if (rows.size() > geometry.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("exchange slot ", slot, ": ", rows.size(),
                                                   " rows; it holds ", geometry.max_rows));
  }
  auto* descriptors = reinterpret_cast<RowDescriptor*>(region_.data() + place.rows_offset);
  auto* tables = reinterpret_cast<int32_t*>(region_.data() + place.tables_offset);
  uint64_t entries = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SlotRow& row = rows[i];
    const auto block_tokens = static_cast<int64_t>(geometry.block_tokens);
    const int64_t blocks = (int64_t{row.context_tokens} + block_tokens - 1) / block_tokens;
    if (row.context_tokens < 1 || static_cast<int64_t>(row.block_table.size()) < blocks) {
      return absl::InvalidArgumentError(absl::StrCat("exchange slot ", slot, " row ", i, ": ",
                                                     row.context_tokens, " context tokens with ",
                                                     row.block_table.size(), " blocks"));
    }
    const auto count = static_cast<uint64_t>(blocks);
    if (entries + count > geometry.max_table_entries) {
      return absl::InvalidArgumentError(absl::StrCat("exchange slot ", slot, ": more than ",
                                                     geometry.max_table_entries,
                                                     " block table entries"));
    }
    descriptors[i] = {static_cast<uint32_t>(row.context_tokens), static_cast<uint32_t>(count),
                      entries, row.sequence_id};
    row.request_id.copy(descriptors[i].request_id, sizeof(descriptors[i].request_id));
    std::memcpy(tables + entries, row.block_table.data(), count * sizeof(int32_t));
    entries += count;
  }
  SlotHeader slot_header{};
  slot_header.epoch = epoch;
  slot_header.num_rows = static_cast<uint32_t>(rows.size());
  slot_header.scale = scale;
  slot_header.table_entries = entries;
  std::memcpy(region_.data() + place.header_offset, &slot_header, sizeof(slot_header));
  return absl::OkStatus();
}

absl::Status DeviceSideImpl::BeginStep(uint64_t epoch, std::span<const SlotRow> slot_a,
                                       std::span<const SlotRow> slot_b, float scale,
                                       int64_t timeout_us) {
  if (down_.load(std::memory_order_acquire)) {
    return absl::UnavailableError("no CPU attention worker is attached");
  }
  if (epoch == 0 || epoch == epoch_.load(std::memory_order_relaxed)) {
    return absl::InvalidArgumentError(absl::StrCat("exchange: epoch ", epoch, " is not a new one"));
  }
  TANDEM_RETURN_IF_ERROR(WriteSlot(0, epoch, slot_a, scale));
  TANDEM_RETURN_IF_ERROR(WriteSlot(1, epoch, slot_b, scale));
  epoch_.store(epoch, std::memory_order_seq_cst);
  bells_->epoch.value.store(epoch, std::memory_order_release);
  SignalWorker();
  bool acked = false;
  bool failed = false;
  bool released = false;
  const auto answered = [&] {
    acked = bells_->acked_epoch.value.load(std::memory_order_acquire) == epoch;
    failed = bells_->failed_epoch.value.load(std::memory_order_acquire) == epoch;
    // A Release that came before epoch_ was stored is seen as down_.
    released = ReleasedNow() || down_.load(std::memory_order_seq_cst);
    return acked || failed || released;
  };
  if (!WaitUntil(bells_->ack_signal, answered, Deadline(timeout_us), Policy())) {
    return absl::DeadlineExceededError("the CPU attention worker did not take the step in time");
  }
  if (failed) {
    return absl::InternalError("the CPU attention worker refused the step's descriptor");
  }
  if (released) {
    return absl::UnavailableError("the CPU attention worker was lost");
  }
  for (int slot = 0; slot < kNumSlots; ++slot) {
    for (WaitWord& posted : bells_->posted[slot]) {
      posted.value.store(0, std::memory_order_relaxed);
    }
    bells_->done[slot].value.store(0, std::memory_order_relaxed);
  }
  bells_->armed_epoch.value.store(epoch, std::memory_order_release);
  SignalWorker();
  return absl::OkStatus();
}

void DeviceSideImpl::PostPart(int slot, int32_t layer, int poster) {
  WaitWord& posted = bells_->posted[slot][poster];
  const uint32_t value = static_cast<uint32_t>(layer) + 1;
  if (header_.geometry.device_wakes != 0) {
    StoreAndWake(posted, value);
  } else {
    posted.value.store(value, std::memory_order_release);
  }
}

WaitResult DeviceSideImpl::WaitDone(int slot, int32_t layer, int64_t timeout_us) {
  WaitWord& done = bells_->done[slot];
  const auto want = static_cast<uint32_t>(layer) + 1;
  bool released = false;
  const auto finished = [&] {
    released = ReleasedNow();
    const uint32_t value = done.value.load(std::memory_order_acquire);
    return released || value >= want;
  };
  if (!WaitUntil(done, finished, Deadline(timeout_us), Policy())) {
    return WaitResult::kTimedOut;
  }
  return released || done.value.load(std::memory_order_acquire) == kDoneReleased
             ? WaitResult::kReleased
             : WaitResult::kDone;
}

LayerTiming DeviceSideImpl::layer_timing(int slot, int32_t layer) const {
  const size_t index =
      static_cast<size_t>(slot) * header_.geometry.num_layers + static_cast<size_t>(layer);
  LayerTiming timing;
  std::memcpy(&timing, region_.data() + header_.timings_offset + index * sizeof(timing),
              sizeof(timing));
  const auto now_us = static_cast<uint64_t>(base::SystemClock().NowUs());
  const bool sound = timing.begin_us <= timing.end_us && timing.end_us <= now_us;
  return sound ? timing : LayerTiming{};
}

void DeviceSideImpl::Release() {
  down_.store(true, std::memory_order_seq_cst);
  released_epoch_.store(epoch_.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
  for (WaitWord& word : bells_->done) {
    StoreAndWake(word, kDoneReleased);
  }
  IncrementAndWake(bells_->ack_signal);
}

absl::Status DeviceSideImpl::AbortStep(uint64_t epoch, int64_t timeout_us) {
  bells_->abort_epoch.value.store(epoch, std::memory_order_release);
  SignalWorker();
  for (int poster = 0; poster < static_cast<int>(header_.geometry.num_posters); ++poster) {
    for (int slot = 0; slot < kNumSlots; ++slot) {
      WakeAll(bells_->posted[slot][poster]);  // where a worker sleeps inside a step
    }
  }
  const auto acked = [&] {
    return bells_->abort_acked_epoch.value.load(std::memory_order_acquire) == epoch;
  };
  if (!WaitUntil(bells_->ack_signal, acked, Deadline(timeout_us), Policy())) {
    return absl::DeadlineExceededError("the CPU attention worker did not leave the step in time");
  }
  down_.store(false, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSide>> DeviceSide::Create(const Geometry& geometry) {
  TANDEM_ASSIGN_OR_RETURN(const RegionHeader header, ComputeLayout(geometry));
  const auto machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (header.region_bytes > machine_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the CPU KV pool's region of ", header.region_bytes,
                     " bytes is larger than this machine's memory of ", machine_bytes));
  }
  TANDEM_ASSIGN_OR_RETURN(shm::Region region,
                          shm::Region::Create("tandem-exchange", header.region_bytes));
  return std::make_unique<DeviceSideImpl>(header, std::move(region));
}

}  // namespace tandem::exchange
