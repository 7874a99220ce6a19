#include "router/upstream/completion_loop.h"

namespace tandem::router {

CompletionLoop::CompletionLoop() : thread_([this] { Run(); }) {}

CompletionLoop::~CompletionLoop() {
  queue_.Shutdown();
  thread_.join();
}

void CompletionLoop::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    static_cast<CompletionTag*>(tag)->OnCompletion(ok);
  }
}

}  // namespace tandem::router
