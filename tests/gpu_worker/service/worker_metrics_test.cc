#include "gpu_worker/service/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

class ManualClock : public base::Clock {
 public:
  int64_t NowUs() const override { return now_us; }
  int64_t UnixUs() const override { return now_us; }
  int64_t now_us = 0;
};

TEST(WorkerMetrics, EverySeriesIsThereFromTheStart) {
  const auto registry = telemetry::Registry::Create();
  const WorkerMetrics metrics(registry.get());
  const std::string text = registry->Render();
  for (const char* series : {"tandem_worker_steps_total{mode=\"gpu_only\"} 0",
                             "tandem_worker_steps_total{mode=\"unified\"} 0",
                             "tandem_worker_steps_total{mode=\"asymmetric\"} 0",
                             "tandem_worker_step_duration_seconds_count{mode=\"asymmetric\"} 0",
                             "tandem_worker_sequences{state=\"waiting\"} 0",
                             "tandem_worker_sequences{state=\"prefill\"} 0",
                             "tandem_worker_sequences{state=\"gpu_decode\"} 0",
                             "tandem_worker_sequences{state=\"cpu_decode\"} 0",
                             "tandem_worker_sequences{state=\"moving\"} 0",
                             "tandem_worker_kv_blocks{pool=\"gpu\",state=\"free\"} 0",
                             "tandem_worker_kv_blocks{pool=\"cpu\",state=\"used\"} 0",
                             "tandem_worker_kv_blocks{pool=\"cpu\",state=\"cached\"} 0",
                             "tandem_worker_tokens_total{kind=\"prompt\"} 0",
                             "tandem_worker_tokens_total{kind=\"cached\"} 0",
                             "tandem_worker_tokens_total{kind=\"generated\"} 0",
                             "tandem_worker_decode_tokens_total{tier=\"gpu\"} 0",
                             "tandem_worker_decode_tokens_total{tier=\"cpu\"} 0",
                             "tandem_worker_moves_total{kind=\"swap_out\"} 0",
                             "tandem_worker_moves_total{kind=\"swap_in\"} 0",
                             "tandem_worker_moves_total{kind=\"recompute\"} 0",
                             "tandem_worker_aborted_steps_total{reason=\"cpu_worker_lost\"} 0",
                             "tandem_worker_cpu_attention_up 0",
                             "tandem_worker_offload_enabled 0",
                             "tandem_worker_prediction_ratio_count{term=\"linear\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(series));
  }
}

TEST(WorkerMetrics, CountersFollowTotalsAndGaugesLevels) {
  const auto registry = telemetry::Registry::Create();
  WorkerMetrics metrics(registry.get());
  EngineSnapshot snapshot;
  snapshot.steps[1] = 4;
  snapshot.decode_tokens_cpu = 10;
  snapshot.cpu_blocks_used = 3;
  snapshot.cpu_attention_up = true;
  metrics.Update(snapshot);
  metrics.Update(snapshot);  // the same totals count once
  snapshot.decode_tokens_cpu = 12;
  snapshot.cpu_blocks_used = 1;
  metrics.Update(snapshot);
  const std::string text = registry->Render();
  EXPECT_THAT(text, HasSubstr("tandem_worker_steps_total{mode=\"unified\"} 4"));
  EXPECT_THAT(text, HasSubstr("tandem_worker_decode_tokens_total{tier=\"cpu\"} 12"));
  EXPECT_THAT(text, HasSubstr("tandem_worker_kv_blocks{pool=\"cpu\",state=\"used\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_worker_cpu_attention_up 1"));
}

TEST(WorkerMetrics, StepsAreObserved) {
  const auto registry = telemetry::Registry::Create();
  WorkerMetrics metrics(registry.get());
  StepObservation observation;
  observation.mode = StepMode::kAsymmetric;
  observation.duration_us = 2500;
  observation.measured_over_predicted = {{"linear", 0.9}, {"of no known term", 1.0}};
  metrics.Observe(observation);
  const std::string text = registry->Render();
  EXPECT_THAT(text,
              HasSubstr("tandem_worker_step_duration_seconds_sum{mode=\"asymmetric\"} 0.0025"));
  EXPECT_THAT(text, HasSubstr("tandem_worker_prediction_ratio_count{term=\"linear\"} 1"));
}

TEST(LivenessWatch, StandingStillWithWorkIsNoLife) {
  ManualClock clock;
  LivenessWatch watch(&clock, 100);
  EngineSnapshot busy;
  busy.gpu_decode = 1;
  EXPECT_TRUE(watch.Check(busy));
  clock.now_us = 100;
  EXPECT_TRUE(watch.Check(busy));
  clock.now_us = 101;
  EXPECT_FALSE(watch.Check(busy));
  busy.progress = 1;
  EXPECT_TRUE(watch.Check(busy));
  clock.now_us = 500;
  EXPECT_TRUE(watch.Check(EngineSnapshot{.progress = 1})) << "idle is healthy";
  EXPECT_TRUE(watch.Check(busy)) << "work that came just now has its time";
}

}  // namespace
}  // namespace tandem::gpu_worker
