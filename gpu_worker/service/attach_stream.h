#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tandem/v1/cpu_attention.grpc.pb.h"

namespace tandem::gpu_worker {

// One Attach call to a CPU attention worker, polled by one thread.
class AttachStream {
 public:
  // Starts the call; what became of it shows in Poll.
  AttachStream(const std::string& socket_path, const v1::AttachRequest& request);
  ~AttachStream();  // cancels the call: a detach
  AttachStream(const AttachStream&) = delete;
  AttachStream& operator=(const AttachStream&) = delete;

  // The next event, or nothing within the time or because the stream ended.
  std::optional<v1::AttachEvent> Poll(int64_t timeout_us);
  bool ended() const { return ended_; }
  // Why it ended.
  absl::Status status() const;

  absl::Status Configure(v1::ConfigureRequest::WaitPolicy policy, int64_t timeout_us);

 private:
  enum Tag : intptr_t { kStarted = 1, kRead = 2, kFinished = 3 };

  std::unique_ptr<v1::CpuAttention::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  v1::AttachEvent event_;
  grpc::Status status_;
  bool ended_ = false;
  std::unique_ptr<grpc::ClientAsyncReader<v1::AttachEvent>> reader_;
};

}  // namespace tandem::gpu_worker
