#include "cpu_attention_worker/server/step_loop.h"

#include <pthread.h>

#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "cpu_attention_worker/server/step_log.h"

namespace tandem::cpu_attention_worker {
namespace {

using Kind = exchange::WorkerSide::LayerWork::Kind;

// How long a stop may go unseen; the idle wait is interrupted, so it costs no wake-ups there.
constexpr int64_t kIdleSliceUs = 1'000'000;
constexpr int64_t kStepSliceUs = 100'000;

// Below this, calling the others takes longer than it saves: a thread that is parked comes after 20
// to 50 us, one that spins after less than one.
constexpr uint64_t kAloneBytesParked = 256 << 10;
constexpr uint64_t kAloneBytesSpinning = 32 << 10;

// Of a step, in a log line.
constexpr size_t kLoggedRows = 16;

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

StepLoop::StepLoop(exchange::WorkerSide* side, attention::AttendSegmentFn attend, ThreadTeam* team,
                   WorkerMetrics* metrics,
                   std::function<void(uint64_t, const std::string&)> on_refused)
    : side_(side),
      team_(team),
      metrics_(metrics),
      on_refused_(std::move(on_refused)),
      progress_us_(base::SystemClock().NowUs()) {
  for (std::unique_ptr<LayerJob>& job : jobs_) {
    job = std::make_unique<LayerJob>(side->header().geometry, attend, team->size());
  }
  thread_ = std::thread([this] { Run(); });
}

StepLoop::~StepLoop() { Stop(0); }

void StepLoop::RefuseNewSteps() {
  refuse_.store(true);
  side_->Interrupt();
}

void StepLoop::Stop(int64_t timeout_us) {
  if (!thread_.joinable()) {
    return;
  }
  leave_us_.store(base::SystemClock().NowUs() + timeout_us);
  RefuseNewSteps();
  thread_.join();
}

void StepLoop::Run() {
  pthread_setname_np(pthread_self(), "steps");
  team_->PinCaller();
  while (!refuse_.load()) {
    progress_us_.store(base::SystemClock().NowUs());
    switch (side_->WaitForStep(kIdleSliceUs)) {
      case exchange::WorkerSide::StepEvent::kNone:
        break;
      case exchange::WorkerSide::StepEvent::kRefused:
        metrics_->steps_refused.Add();
        on_refused_(side_->epoch(), std::string(side_->refusal().message()));
        break;
      case exchange::WorkerSide::StepEvent::kArmed:
        ServeStep();
        break;
    }
  }
  ended_.store(true);
}

void StepLoop::ServeStep() {
  for (int slot = 0; slot < exchange::kNumSlots; ++slot) {
    jobs_[slot]->Prepare(side_->slot(slot), {side_->q(slot), side_->k(slot), side_->v(slot),
                                             side_->o(slot), side_->pool()});
  }
  const int64_t started_us = base::SystemClock().NowUs();
  const bool left = !ServeLayers();
  if (left) {
    metrics_->steps_aborted.Add();
  }
  LogStep(left, started_us);
}

void StepLoop::LogStep(bool left, int64_t started_us) const {
  const base::LogLevel level = left ? base::LogLevel::kInfo : base::LogLevel::kDebug;
  if (!base::LogEnabled(level)) {
    return;
  }
  const exchange::StepSlot* const slots[] = {&side_->slot(0), &side_->slot(1)};
  base::Log(level, left ? "step left before its end" : "step served",
            {{"epoch", side_->epoch()},
             {"us", base::SystemClock().NowUs() - started_us},
             {"rows", DescribeRows(slots, kLoggedRows)}});
}

bool StepLoop::ServeLayers() {
  const base::Clock& clock = base::SystemClock();
  int64_t waiting_since_us = clock.NowUs();
  while (true) {
    const exchange::WorkerSide::LayerWork work = side_->NextLayer(kStepSliceUs);
    progress_us_.store(clock.NowUs());
    switch (work.kind) {
      case Kind::kFinished:
        return true;
      case Kind::kAborted:
        return false;
      case Kind::kNone:
        if (clock.NowUs() >= leave_us_.load()) {
          return false;
        }
        break;
      case Kind::kLayer: {
        const int64_t started_us = clock.NowUs();
        RunLayer(work.slot, work.layer, started_us);
        const int64_t ended_us = clock.NowUs();
        metrics_->wait_seconds.Observe(Seconds(started_us - waiting_since_us));
        metrics_->compute_seconds.Observe(Seconds(ended_us - started_us));
        waiting_since_us = ended_us;
        break;
      }
    }
  }
}

void StepLoop::RunLayer(int slot, int32_t layer, int64_t started_us) {
  LayerJob& job = *jobs_[slot];
  job.BeginLayer(layer);
  const exchange::WorkerSide::LayerWork next = side_->LayerAfter(slot, layer);
  const std::function<bool()> leave = [this] { return side_->AbortRequested(); };
  if (IsSmall(job)) {
    job.Work(0, leave);
    ListReads(next, 0);
  } else {
    team_->Run([&](int member) {
      job.Work(member, leave);
      ListReads(next, member);
    });
  }
  if (side_->AbortRequested()) {
    return;  // O rows may be incomplete; NextLayer acknowledges
  }
  side_->RecordTiming(slot, layer, started_us, base::SystemClock().NowUs());
  side_->SignalDone(slot, layer);
  metrics_->batches.Add();
  metrics_->read_bytes.Add(static_cast<double>(job.layer_read_bytes()));
  while (!side_->LayerWaits() && team_->prefetch_list(0).Step()) {
  }
}

bool StepLoop::IsSmall(const LayerJob& job) const {
  return job.layer_read_bytes() < (team_->shares_cores() ? kAloneBytesParked : kAloneBytesSpinning);
}

// What `member` will read of the next layer, to be asked for while it waits. On shared cores
// whoever waits leaves the core at once instead.
void StepLoop::ListReads(const exchange::WorkerSide::LayerWork& next, int member) {
  PrefetchList& list = team_->prefetch_list(member);
  list.Clear();
  if (team_->shares_cores() || next.kind != Kind::kLayer) {
    return;
  }
  const LayerJob& job = *jobs_[next.slot];
  const bool alone = IsSmall(job);
  if (!alone || member == 0) {
    job.ListReads(next.layer, member, alone ? team_->size() : member + 1, &list);
  }
}

}  // namespace tandem::cpu_attention_worker
