#include "gpu_worker/ops/cuda/join_watch.h"

#include <algorithm>
#include <chrono>

#include "common/base/clock.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr std::chrono::milliseconds kLookEvery{5};

exchange::Doorbells& BellsOf(const exchange::DeviceSide& exchange) {
  return *reinterpret_cast<exchange::Doorbells*>(exchange.region().data() +
                                                 exchange.header().doorbells_offset);
}

uint32_t* AddressOf(std::atomic<uint32_t>& word) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(&word);
}

}  // namespace

uint32_t* PostedWord(const exchange::DeviceSide& exchange, int slot, int poster) {
  return AddressOf(BellsOf(exchange).posted[slot][poster].value);
}

uint32_t* DoneWord(const exchange::DeviceSide& exchange, int slot) {
  return AddressOf(BellsOf(exchange).done[slot].value);
}

JoinWatch::~JoinWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void JoinWatch::Begin(exchange::DeviceSide* exchange, int64_t timeout_us) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = watched_.try_emplace(exchange);
  if (!is_new) {
    return;
  }
  entry->second.timeout_us = timeout_us;
  entry->second.since_us = base::SystemClock().NowUs();
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { Loop(); });
  }
  changed_.notify_all();
}

bool JoinWatch::End(exchange::DeviceSide* exchange) {
  const std::lock_guard lock(mutex_);
  const auto found = watched_.find(exchange);
  const bool late = found != watched_.end() && found->second.late;
  if (found != watched_.end()) {
    watched_.erase(found);
  }
  return late;
}

void JoinWatch::Look(exchange::DeviceSide* exchange, int64_t now_us, Watched& watched) {
  bool moved = false;
  bool owed = false;
  const exchange::Doorbells& bells = BellsOf(*exchange);
  for (int slot = 0; slot < exchange::kNumSlots; ++slot) {
    uint32_t posted = 0;  // of whoever is ahead: who waits for the others is owed, too
    for (const exchange::WaitWord& word : bells.posted[slot]) {
      posted = std::max(posted, word.value.load(std::memory_order_acquire));
    }
    const uint32_t done = bells.done[slot].value.load(std::memory_order_acquire);
    moved = moved || posted != watched.posted[slot] || done != watched.done[slot];
    owed = owed || done < posted;
    watched.posted[slot] = posted;
    watched.done[slot] = done;
  }
  if (moved || !owed) {
    watched.since_us = now_us;
  } else if (now_us - watched.since_us > watched.timeout_us) {
    watched.late = true;
    watched.since_us = now_us;
    exchange->Release();
  }
}

void JoinWatch::Loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (watched_.empty()) {
      changed_.wait(lock, [this] { return stop_ || !watched_.empty(); });
    } else {
      changed_.wait_for(lock, kLookEvery, [this] { return stop_; });
    }
    const int64_t now_us = base::SystemClock().NowUs();
    for (auto& [exchange, watched] : watched_) {
      Look(exchange, now_us, watched);
    }
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
