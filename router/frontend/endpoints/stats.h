#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "router/upstream/worker_client.h"

namespace tandem::router {

// How far a request is; written by its thread, read by any.
struct RequestProgress {
  std::string id;
  int64_t started_us = 0;
  std::atomic<int64_t> tokens = 0;  // of all its sequences; none yet: it waits or is prefilled
};

// What the page with the live plots shows: the workers' counters and the requests in flight.
// Thread-safe; asks the workers on a thread of its own, seldom more often than they change.
class StatsSource {
 public:
  // All outlive it.
  StatsSource(std::vector<WorkerClient*> workers, const base::Clock* clock)
      : workers_(std::move(workers)), clock_(clock), pool_(1) {}
  ~StatsSource();

  using Requests = std::vector<std::shared_ptr<const RequestProgress>>;
  // Calls `done` with a JSON document, on the source's thread. False: too many ask already.
  bool Get(Requests requests, std::function<void(std::string json)> done);

 private:
  void Refresh();
  std::string Render(const Requests& requests) const;

  const std::vector<WorkerClient*> workers_;
  const base::Clock* const clock_;
  v1::WorkerState sum_;  // of all workers; the pool's thread only
  int workers_seen_ = 0;
  int64_t refreshed_us_ = 0;
  std::atomic<int> waiting_ = 0;
  boost::asio::thread_pool pool_;
};

}  // namespace tandem::router
