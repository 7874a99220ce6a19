#pragma once

#include <grpcpp/completion_queue.h>

#include <thread>

namespace tandem::router {

// What a completion queue gives back; lives until it did.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void OnCompletion(bool ok) = 0;
};

// A gRPC completion queue and the thread that serves it. Every tag on the queue is a CompletionTag.
class CompletionLoop {
 public:
  CompletionLoop();
  // All calls on the queue have been cancelled or have ended; waits for their last tags.
  ~CompletionLoop();
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  grpc::CompletionQueue& queue() { return queue_; }

 private:
  void Run();

  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace tandem::router
