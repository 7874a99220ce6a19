#include "cli/bench/read_limit.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/topology/topology.h"

namespace tandem::cli {
namespace {

constexpr int kTrials = 3;

// From the first thread's start to the last one's end, scaled to all of `bytes`.
double SecondsOf(attention::StreamReadFn read, const std::byte* data, uint64_t bytes,
                 const std::vector<int>& cpus) {
  const size_t threads = cpus.size();
  const uint64_t share =
      bytes / threads / attention::kStreamReadGrain * attention::kStreamReadGrain;
  std::atomic<size_t> arrived{0};
  std::atomic<uint64_t> sink{0};
  std::vector<int64_t> started_us(threads);
  std::vector<int64_t> ended_us(threads);
  const base::Clock& clock = base::SystemClock();
  const auto member = [&](size_t index) {
    // Unpinned it measures too; the worker logs the same failure.
    topology::PinThisThread(cpus[index]).IgnoreError();
    arrived.fetch_add(1);
    while (arrived.load() < threads) {
      std::this_thread::yield();
    }
    started_us[index] = clock.NowUs();
    sink.fetch_add(read(data + index * share, share));
    ended_us[index] = clock.NowUs();
  };
  std::vector<std::thread> members;
  for (size_t index = 0; index < threads; ++index) {
    members.emplace_back(member, index);
  }
  for (std::thread& thread : members) {
    thread.join();
  }
  const int64_t us = *std::max_element(ended_us.begin(), ended_us.end()) -
                     *std::min_element(started_us.begin(), started_us.end());
  return static_cast<double>(std::max<int64_t>(1, us)) * 1e-6 * static_cast<double>(bytes) /
         static_cast<double>(share * threads);
}

}  // namespace

ReadLimit::ReadLimit(attention::Isa isa, std::vector<int> cpus, const std::byte* data,
                     uint64_t bytes)
    : cpus_(std::move(cpus)), data_(data), bytes_(bytes) {
  const auto forms = attention::StreamReadForms(isa);
  std::vector<std::vector<double>> seconds(forms.size());
  for (int round = 0; round < kTrials; ++round) {
    for (size_t i = 0; i < forms.size(); ++i) {
      seconds[i].push_back(SecondsOf(forms[i].read, data_, bytes_, cpus_));
    }
  }
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < forms.size(); ++i) {
    std::sort(seconds[i].begin(), seconds[i].end());
    if (seconds[i][kTrials / 2] < best) {
      best = seconds[i][kTrials / 2];
      form_ = forms[i];
    }
  }
}

double ReadLimit::Seconds() const { return SecondsOf(form_.read, data_, bytes_, cpus_); }

}  // namespace tandem::cli
