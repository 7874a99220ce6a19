#include "cpu_attention_worker/server/attachment.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/shm/residency.h"

namespace tandem::cpu_attention_worker {
namespace {

// A peer that does not read its events loses the oldest; the count of extents is in the newest.
constexpr size_t kMaxEvents = 256;
constexpr int64_t kTellEveryUs = 1'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Attachment>> Attachment::Start(shm::Region region, bool first,
                                                              const Placed& placed) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<exchange::WorkerSide> side,
                          exchange::WorkerSide::Attach(std::move(region)));
  const kv::PoolGeometry pool = exchange::PoolGeometryOf(side->header().geometry);
  if (placed.kv_dtype && *placed.kv_dtype != pool.dtype) {
    return absl::FailedPreconditionError(
        absl::StrCat("the GPU worker's --cpu-kv-dtype is ", DTypeName(pool.dtype),
                     "; this process's allows ", DTypeName(*placed.kv_dtype)));
  }
  TANDEM_ASSIGN_OR_RETURN(const attention::AttendSegmentFn attend,
                          attention::GetAttendSegment(placed.isa, pool));
  std::unique_ptr<Attachment> attachment(new Attachment(std::move(side), placed));
  attachment->loop_ = std::make_unique<StepLoop>(
      attachment->side_.get(), attend, placed.team, placed.metrics,
      [raw = attachment.get()](uint64_t epoch, const std::string& message) {
        raw->OnRefused(epoch, message);
      });
  if (!first) {
    // Every block was handed out before; touching only maps the pages into this process.
    attachment->Push({Event::Kind::kExtentsReady, attachment->extents_total_, 0, ""});
  }
  attachment->StartToucher(first);
  placed.metrics->attached.Set(1);
  return attachment;
}

Attachment::Attachment(std::unique_ptr<exchange::WorkerSide> side, const Placed& placed)
    : placed_(placed), side_(std::move(side)) {
  const exchange::RegionHeader& header = side_->header();
  const uint64_t extent = header.geometry.extent_bytes;
  extents_total_ = static_cast<uint32_t>((header.pool_bytes + extent - 1) / extent);
}

Attachment::~Attachment() {
  // Its callbacks look at it through this object.
  if (toucher_ != nullptr) {
    toucher_->Stop();
  }
  loop_.reset();
  placed_.metrics->attached.Set(0);
}

void Attachment::StartToucher(bool first) {
  const exchange::RegionHeader& header = side_->header();
  PoolToucher::Options options;
  options.pool = side_->pool();
  // To the region's end, which is that of a huge page, so that the last one can be huge, too.
  options.pool_bytes = header.region_bytes - header.pool_offset;
  options.extent_bytes = header.geometry.extent_bytes;
  options.topology = placed_.topology;
  options.numa_node = placed_.placement.numa_node;
  options.cpus = placed_.placement.cpus;
  options.collapse = first && !side_->region().reserved_huge_pages();
  PoolToucher::Callbacks callbacks;
  callbacks.on_extents_ready = [this, first](uint32_t count) { OnExtentsReady(count, first); };
  callbacks.on_warning = [this](const std::string& message) {
    placed_.metrics->memory_bound.Set(memory_bound() ? 1 : 0);
    Warn(message);
  };
  placed_.metrics->memory_bound.Set(1);
  toucher_ = std::make_unique<PoolToucher>(std::move(options), std::move(callbacks));
  toucher_->Start();
}

void Attachment::OnExtentsReady(uint32_t count, bool announce) {
  placed_.metrics->extents_ready.Set(count);
  if (announce) {
    Push({Event::Kind::kExtentsReady, count, 0, ""});
  }
  if (count < extents_total_) {
    return;
  }
  ReportPool();
}

// What was got, as the kernel tells it, and not what was asked for.
void Attachment::ReportPool() {
  const uint64_t pool_bytes = side_->header().pool_bytes;
  const uint64_t huge_bytes = std::min(shm::HugePageBytes(side_->pool(), pool_bytes), pool_bytes);
  const uint64_t misplaced_bytes = toucher_->misplaced_bytes();
  placed_.metrics->huge_page_bytes.Set(static_cast<double>(huge_bytes));
  placed_.metrics->misplaced_bytes.Set(static_cast<double>(misplaced_bytes));
  placed_.metrics->locked_bytes.Set(static_cast<double>(toucher_->locked_bytes()));
  const std::string pages = PageKind(side_->pool(), pool_bytes);
  base::LogInfo("pool ready", {{"bytes", pool_bytes},
                               {"pages", pages},
                               {"reserved_huge_pages", side_->region().reserved_huge_pages()},
                               {"misplaced_bytes", misplaced_bytes},
                               {"locked_bytes", toucher_->locked_bytes()},
                               {"not_locked", toucher_->lock_refusal()}});
  if (pages != "2MiB") {
    Warn(absl::StrCat("the CPU KV pool lies on ", pages,
                      " pages instead of 2MiB, which costs up to a third of the attention speed"));
  }
  if (misplaced_bytes > 0) {
    Warn(absl::StrCat(misplaced_bytes, " of ", pool_bytes,
                      " bytes of the CPU KV pool lie on another NUMA node than ",
                      placed_.placement.numa_node));
  }
}

void Attachment::Warn(const std::string& message) {
  base::LogWarning("pool", {{"warning", message}});
  Push({Event::Kind::kWarning, 0, 0, message});
}

// A peer that sends nothing but bad steps fills neither the log nor the stream.
void Attachment::OnRefused(uint64_t epoch, const std::string& message) {
  ++refused_;
  const int64_t now_us = base::SystemClock().NowUs();
  if (refused_told_us_ != 0 && now_us - refused_told_us_ < kTellEveryUs) {
    return;
  }
  refused_told_us_ = now_us;
  base::LogError("step refused", {{"epoch", epoch}, {"error", message}, {"so_far", refused_}});
  Push({Event::Kind::kStepFailed, 0, epoch, message});
}

void Attachment::Push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty() && event.kind == Event::Kind::kExtentsReady &&
        events_.back().kind == Event::Kind::kExtentsReady) {
      events_.pop_back();
    }
    if (events_.size() == kMaxEvents) {
      events_.pop_front();
    }
    events_.push_back(std::move(event));
  }
  pushed_.notify_one();
}

std::optional<Attachment::Event> Attachment::WaitEvent(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  pushed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                   [this] { return !events_.empty(); });
  if (events_.empty()) {
    return std::nullopt;
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Attachment::SetPolicy(const exchange::WaitPolicy& policy) {
  side_->SetPolicy(policy);
  placed_.team->SetPolicy(policy);
}

std::string Attachment::page_kind() const {
  return PageKind(side_->pool(), side_->header().pool_bytes);
}

}  // namespace tandem::cpu_attention_worker
