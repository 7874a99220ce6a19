#pragma once

#include <grpcpp/completion_queue.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>

namespace tandem::router {

// What a completion queue gives back; lives until it did.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void OnCompletion(bool ok) = 0;
};

// A call with operations on a queue, as the queue's end sees it.
class LoopCall {
 public:
  virtual ~LoopCall() = default;
  virtual void Cancel() = 0;
};

// A gRPC completion queue and the thread that serves it. Every tag on the queue is a CompletionTag.
class CompletionLoop {
 public:
  CompletionLoop();
  // Cancels the calls that are left and waits for their last tags; a queue that is shut down takes
  // no more operations, not even those that end a call.
  ~CompletionLoop();
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  grpc::CompletionQueue& queue() { return queue_; }
  // Around a call's operations; thread-safe. Remove is the call's last word to the loop.
  void Add(LoopCall* call);
  void Remove(LoopCall* call);

 private:
  void Run();

  grpc::CompletionQueue queue_;
  std::mutex mutex_;
  std::condition_variable all_removed_;
  std::unordered_set<LoopCall*> calls_;
  std::thread thread_;
};

}  // namespace tandem::router
