#include "tests/fakes/cuda/executor.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/fakes/cuda/shim/grid.h"

namespace tandem::fake_cuda {
namespace {

constexpr std::chrono::microseconds kWordPause{20};  // between looks at words that others write

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t NumberOfEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

void Event::Reach(uint64_t ticket) {
  reached = std::max(reached, ticket);
  time_ms = NowMs();
}

// Never destroyed: streams may be used until the process ends.
Executor& Executor::Get() {
  static auto* executor = new Executor;
  return *executor;
}

// The kernels' own tests watch shared memory; whole models would take minutes.
Executor::Executor()
    : room_(NumberOfEnvironment("FAKE_CUDA_QUEUE", 1024)),
      seed_(NumberOfEnvironment("FAKE_CUDA_SEED", 1)),
      random_(seed_) {
  shim::WatchSharedMemory(std::getenv("FAKE_CUDA_WATCH_SHARED") != nullptr);
  std::thread([this] { Run(); }).detach();
}

void Executor::Add(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void Executor::Remove(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

void Executor::Queue(const std::shared_ptr<Stream>& stream, Operation operation) {
  const std::lock_guard lock(mutex_);
  stream->queue.push_back(std::move(operation));
  changed_.notify_all();
}

void Executor::AwaitRoom(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stream->queue.size() < room_; });
}

bool Executor::IsIdle(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  return stream->queue.empty() && !stream->running;
}

void Executor::AwaitIdle(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stream->queue.empty() && !stream->running; });
}

// Seeds 4n go on with the last stream that was made as long as they can, 4n + 1 with the first,
// others mostly with the one that ran last.
std::shared_ptr<Stream> Executor::Choose() {
  std::vector<std::shared_ptr<Stream>> ready;
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (!stream->queue.empty() &&
        (stream->queue.front().ready == nullptr || stream->queue.front().ready())) {
      ready.push_back(stream);
    }
  }
  if (ready.empty()) {
    return nullptr;
  }
  if (seed_ % 4 < 2) {
    return seed_ % 4 == 0 ? ready.back() : ready.front();
  }
  const bool go_on = random_() % 8 != 0;
  if (go_on && std::find(ready.begin(), ready.end(), newest_) != ready.end()) {
    return newest_;
  }
  return ready[random_() % ready.size()];
}

void Executor::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::shared_ptr<Stream> stream = Choose();
    if (stream == nullptr) {
      const bool blocked = std::any_of(streams_.begin(), streams_.end(),
                                       [](const auto& each) { return !each->queue.empty(); });
      if (blocked) {
        changed_.wait_for(lock, kWordPause);
      } else {
        changed_.wait(lock);
      }
      continue;
    }
    newest_ = stream;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    lock.unlock();
    operation.run();
    lock.lock();
    stream->running = false;
    changed_.notify_all();
  }
}

}  // namespace tandem::fake_cuda
