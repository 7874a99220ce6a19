#include "common/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "common/base/check.h"

namespace tandem::telemetry {
namespace {

class PrometheusCounter : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& counter) : counter_(counter) {}
  void Add(double amount) override { counter_.Increment(amount); }

 private:
  prometheus::Counter& counter_;
};

class PrometheusGauge : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_.Set(value); }
  void Add(double amount) override { gauge_.Increment(amount); }

 private:
  prometheus::Gauge& gauge_;
};

class PrometheusHistogram : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

class PrometheusRegistry : public Registry {
 public:
  Counter& counter(const std::string& name, const std::string& help,
                   const Labels& labels) override {
    return FindOrAdd(counters_, 'c', name, labels, [&](const prometheus::Labels& map) {
      return std::make_unique<PrometheusCounter>(
          prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(map));
    });
  }

  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels) override {
    return FindOrAdd(gauges_, 'g', name, labels, [&](const prometheus::Labels& map) {
      return std::make_unique<PrometheusGauge>(
          prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(map));
    });
  }

  Histogram& histogram(const std::string& name, const std::string& help,
                       const std::vector<double>& bounds, const Labels& labels) override {
    return FindOrAdd(histograms_, 'h', name, labels, [&](const prometheus::Labels& map) {
      return std::make_unique<PrometheusHistogram>(
          prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(map, bounds));
    });
  }

  void AddCollectCallback(std::function<void()> callback) override {
    const std::lock_guard lock(collect_mutex_);
    callbacks_.push_back(std::move(callback));
  }

  std::string Render() override {
    const std::lock_guard lock(collect_mutex_);  // one scrape at a time sets the gauges
    for (const auto& callback : callbacks_) {
      callback();
    }
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  using Key = std::pair<std::string, Labels>;

  template <typename Map, typename Make>
  typename Map::mapped_type::element_type& FindOrAdd(Map& map, char kind, const std::string& name,
                                                     const Labels& labels, Make make) {
    Labels sorted = labels;
    std::sort(sorted.begin(), sorted.end());
    const std::lock_guard lock(mutex_);
    // prometheus-cpp throws on a name that changes its kind: a mistake of ours, found by any run.
    TANDEM_CHECK(kinds_.try_emplace(name, kind).first->second == kind);
    auto& slot = map[Key(name, sorted)];
    if (slot == nullptr) {
      slot = make(prometheus::Labels(sorted.begin(), sorted.end()));
    }
    return *slot;
  }

  prometheus::Registry registry_;
  std::mutex mutex_;  // guards the four maps
  std::map<std::string, char> kinds_;
  std::map<Key, std::unique_ptr<PrometheusCounter>> counters_;
  std::map<Key, std::unique_ptr<PrometheusGauge>> gauges_;
  std::map<Key, std::unique_ptr<PrometheusHistogram>> histograms_;
  std::mutex collect_mutex_;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace

std::unique_ptr<Registry> Registry::Create() { return std::make_unique<PrometheusRegistry>(); }

std::vector<double> LatencyBounds() {
  return {0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05,
          0.075, 0.1,   0.15,  0.2,   0.3,    0.5,  0.75,  1.0,  1.5,  2.0,
          3.0,   5.0,   7.5,   10.0,  15.0,   20.0, 30.0,  60.0};
}

std::vector<double> ShortLatencyBounds() {
  return {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3,
          2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0};
}

}  // namespace tandem::telemetry
