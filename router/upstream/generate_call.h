#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "router/router_core/sequence_state.h"
#include "router/upstream/completion_loop.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::router {

// One Generate call to a worker. What arrives is queued here, a bounded number of messages, until
// the owner takes it; beyond that gRPC's flow control holds the worker's stream back.
// Thread-safe. Keeps itself alive until gRPC has given its last tag back.
class GenerateCall : public LoopCall, public std::enable_shared_from_this<GenerateCall> {
 public:
  // What arrived since the last Take, in order; `end` once, after the last response.
  struct Batch {
    std::deque<v1::GenerateResponse> responses;
    std::optional<AttemptEnd> end;
  };

  // `notify` is called on the loop's thread when there is something to take; not again before Take.
  // `deadline_unix_us` of 0 means none. Stub and loop outlive the call.
  static std::shared_ptr<GenerateCall> Start(v1::Inference::Stub& stub, CompletionLoop& loop,
                                             const v1::GenerateRequest& request,
                                             std::function<void()> notify);

  Batch Take();
  // Tells the worker to stop. `notify` is not called any more, unless it is running just now.
  void Cancel() override;

 private:
  enum class Operation { kStart, kRead, kFinish };
  struct Tag : CompletionTag {
    void OnCompletion(bool ok) override { call->OnCompletion(operation, ok); }
    GenerateCall* call = nullptr;
    Operation operation = Operation::kStart;
  };

  explicit GenerateCall(CompletionLoop* loop);
  void OnCompletion(Operation operation, bool ok);
  // Both with the lock held.
  void OnRead(bool ok);
  void OnFinish();

  CompletionLoop* const loop_;
  std::mutex mutex_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader_;
  v1::GenerateResponse incoming_;
  grpc::Status status_;
  Batch arrived_;
  std::function<void()> notify_;
  bool notified_ = false;
  bool paused_ = false;  // the queue is full: no read is outstanding
  bool cancelled_ = false;
  int open_operations_ = 0;
  std::shared_ptr<GenerateCall> self_;
  Tag start_tag_, read_tag_, finish_tag_;
};

}  // namespace tandem::router
