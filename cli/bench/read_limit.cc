#include "cli/bench/read_limit.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "common/base/clock.h"

namespace tandem::cli {
namespace {

// Enough independent sums that loads, not additions, are the limit.
constexpr size_t kSums = 64;

uint64_t Read(const uint64_t* words, uint64_t count) {
  uint64_t sums[kSums] = {};
  for (uint64_t i = 0; i + kSums <= count; i += kSums) {
    for (size_t j = 0; j < kSums; ++j) {
      sums[j] += words[i + j];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

double StreamingReadSeconds(const std::byte* data, uint64_t bytes, int threads) {
  const uint64_t share = bytes / static_cast<uint64_t>(threads) / (kSums * 8) * (kSums * 8);
  std::atomic<int> arrived{0};
  std::atomic<int64_t> first_us{INT64_MAX};
  std::atomic<int64_t> last_us{0};
  std::atomic<uint64_t> sink{0};
  const base::Clock& clock = base::SystemClock();
  const auto member = [&](int index) {
    arrived.fetch_add(1);
    while (arrived.load() < threads) {
      std::this_thread::yield();
    }
    const int64_t started_us = clock.NowUs();
    sink.fetch_add(Read(
        reinterpret_cast<const uint64_t*>(data + static_cast<uint64_t>(index) * share), share / 8));
    const int64_t ended_us = clock.NowUs();
    int64_t seen = first_us.load();
    while (started_us < seen && !first_us.compare_exchange_weak(seen, started_us)) {
    }
    seen = last_us.load();
    while (ended_us > seen && !last_us.compare_exchange_weak(seen, ended_us)) {
    }
  };
  std::vector<std::thread> others;
  for (int index = 1; index < threads; ++index) {
    others.emplace_back(member, index);
  }
  member(0);
  for (std::thread& thread : others) {
    thread.join();
  }
  const double scale =
      static_cast<double>(bytes) / static_cast<double>(share * static_cast<uint64_t>(threads));
  return static_cast<double>(std::max<int64_t>(1, last_us.load() - first_us.load())) * 1e-6 * scale;
}

}  // namespace tandem::cli
