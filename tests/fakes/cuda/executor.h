#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

// What stands behind the fake driver's streams and events.
namespace tandem::fake_cuda {

class Graph;

struct Event {
  uint64_t recorded = 0;
  uint64_t reached = 0;
  double time_ms = 0;
  // Its newest record was captured: where. A graph's address alone, never followed.
  const Graph* capture = nullptr;
  std::vector<size_t> frontier;

  void Reach(uint64_t ticket);  // now; with the executor's mutex
};

struct Operation {
  std::function<bool()> ready;  // null: always
  std::function<void()> run;
};

struct Stream {
  std::deque<Operation> queue;
  bool running = false;
  // While it captures: what the next operation comes after.
  Graph* capture = nullptr;
  size_t branch = 0;
  std::vector<size_t> frontier;
};

// One thread runs the operations of all streams, one at a time: in order within a stream, and among
// streams in whatever order a seeded choice makes of what events and words leave open. So a missing
// dependency shows: some seed runs one stream far ahead of another.
class Executor {
 public:
  static Executor& Get();

  void Add(const std::shared_ptr<Stream>& stream);
  void Remove(const std::shared_ptr<Stream>& stream);
  void Queue(const std::shared_ptr<Stream>& stream, Operation operation);
  // Until the stream's queue, which is bounded like the driver's, has room: FAKE_CUDA_QUEUE
  // operations, else 1024.
  void AwaitRoom(const std::shared_ptr<Stream>& stream);
  // The stream has nothing to do; of what is called next by the same thread.
  bool IsIdle(const std::shared_ptr<Stream>& stream);
  void AwaitIdle(const std::shared_ptr<Stream>& stream);
  std::mutex& mutex() { return mutex_; }  // of events

 private:
  Executor();
  void Run();
  std::shared_ptr<Stream> Choose();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> newest_;  // whose operation ran last
  const size_t room_;
  uint64_t seed_;
  std::mt19937_64 random_;
};

}  // namespace tandem::fake_cuda
