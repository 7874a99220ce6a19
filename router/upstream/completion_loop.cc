#include "router/upstream/completion_loop.h"

namespace tandem::router {

CompletionLoop::CompletionLoop() : thread_([this] { Run(); }) {}

CompletionLoop::~CompletionLoop() {
  {
    std::unique_lock lock(mutex_);
    for (LoopCall* call : calls_) {
      call->Cancel();
    }
    all_removed_.wait(lock, [this] { return calls_.empty(); });
  }
  queue_.Shutdown();
  thread_.join();
}

void CompletionLoop::Add(LoopCall* call) {
  std::lock_guard lock(mutex_);
  calls_.insert(call);
}

void CompletionLoop::Remove(LoopCall* call) {
  std::lock_guard lock(mutex_);
  calls_.erase(call);
  all_removed_.notify_all();
}

void CompletionLoop::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    {
      // gRPC's queue already orders this after the call's Add. Its library is not instrumented, so
      // ThreadSanitizer learns it from the lock.
      std::lock_guard lock(mutex_);
    }
    static_cast<CompletionTag*>(tag)->OnCompletion(ok);
  }
}

}  // namespace tandem::router
