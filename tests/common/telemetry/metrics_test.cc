#include "common/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace tandem::telemetry {
namespace {

using testing::HasSubstr;

TEST(Metrics, SeriesAreThereBeforeTheirFirstEvent) {
  const auto registry = Registry::Create();
  registry->counter("t_steps_total", "Steps.", {{"mode", "unified"}});
  registry->gauge("t_up", "Up.");
  registry->histogram("t_seconds", "Time.", {0.1, 1.0}, {{"m", "x"}});
  const std::string text = registry->Render();
  EXPECT_THAT(text, HasSubstr("# TYPE t_steps_total counter"));
  EXPECT_THAT(text, HasSubstr("t_steps_total{mode=\"unified\"} 0"));
  EXPECT_THAT(text, HasSubstr("t_up 0"));
  EXPECT_THAT(text, HasSubstr("t_seconds_bucket{m=\"x\",le=\"0.1\"} 0"));
  EXPECT_THAT(text, HasSubstr("t_seconds_count{m=\"x\"} 0"));
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameSeries) {
  const auto registry = Registry::Create();
  Counter& counter = registry->counter("t_total", "T.", {{"a", "1"}, {"b", "2"}});
  Counter& same = registry->counter("t_total", "T.", {{"b", "2"}, {"a", "1"}});
  EXPECT_EQ(&counter, &same);
  counter.Add(2);
  same.Add();
  registry->gauge("t_level", "L.").Set(4);
  registry->gauge("t_level", "L.").Add(-1.5);
  Histogram& histogram = registry->histogram("t_seconds", "S.", {1.0});
  histogram.Observe(0.5);
  histogram.Observe(7);
  const std::string text = registry->Render();
  EXPECT_THAT(text, HasSubstr("t_total{a=\"1\",b=\"2\"} 3"));
  EXPECT_THAT(text, HasSubstr("t_level 2.5"));
  EXPECT_THAT(text, HasSubstr("t_seconds_bucket{le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("t_seconds_count 2"));
}

TEST(Metrics, CollectCallbacksRunBeforeEachRendering) {
  const auto registry = Registry::Create();
  Gauge& gauge = registry->gauge("t_level", "L.");
  double level = 0;
  registry->AddCollectCallback([&] { gauge.Set(++level); });
  EXPECT_THAT(registry->Render(), HasSubstr("t_level 1"));
  EXPECT_THAT(registry->Render(), HasSubstr("t_level 2"));
}

TEST(Metrics, ThreadsMayCountAndRenderAtOnce) {
  const auto registry = Registry::Create();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        registry->counter("t_total", "T.", {{"k", i % 2 == 0 ? "even" : "odd"}}).Add();
      }
      registry->Render();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(registry->Render(), HasSubstr("t_total{k=\"even\"} 2000"));
}

TEST(Metrics, BoundsGrow) {
  for (const auto& bounds : {LatencyBounds(), ShortLatencyBounds()}) {
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
  }
  EXPECT_EQ(LatencyBounds().front(), 0.001);
  EXPECT_EQ(LatencyBounds().back(), 60.0);
}

TEST(MetricsDeathTest, ANameKeepsItsKind) {
  const auto registry = Registry::Create();
  registry->counter("t_total", "T.");
  EXPECT_DEATH(registry->gauge("t_total", "T."), "CHECK");
}

}  // namespace
}  // namespace tandem::telemetry
