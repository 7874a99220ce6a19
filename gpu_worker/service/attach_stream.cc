#include "gpu_worker/service/attach_stream.h"

#include <grpc/support/time.h>

#include "common/rpc/status.h"

namespace tandem::gpu_worker {
namespace {

std::shared_ptr<grpc::Channel> Connect(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  // A channel of its own: the back-off of a dead process must not delay the next one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   arguments);
}

gpr_timespec After(int64_t timeout_us) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout_us, GPR_TIMESPAN));
}

void* Pointer(intptr_t tag) { return reinterpret_cast<void*>(tag); }

}  // namespace

AttachStream::AttachStream(const std::string& socket_path, const v1::AttachRequest& request)
    : stub_(v1::CpuAttention::NewStub(Connect(socket_path))) {
  reader_ = stub_->AsyncAttach(&context_, request, &queue_, Pointer(kStarted));
}

AttachStream::~AttachStream() {
  context_.TryCancel();
  while (!ended_) {
    Poll(100'000);
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

std::optional<v1::AttachEvent> AttachStream::Poll(int64_t timeout_us) {
  const gpr_timespec deadline = After(timeout_us);
  while (!ended_) {
    void* raw = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&raw, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) {
      return std::nullopt;
    }
    const auto tag = reinterpret_cast<intptr_t>(raw);
    if (tag == kFinished) {
      ended_ = true;
      return std::nullopt;
    }
    if (!ok) {
      reader_->Finish(&status_, Pointer(kFinished));
      continue;
    }
    std::optional<v1::AttachEvent> event;
    if (tag == kRead) {
      event = event_;
    }
    reader_->Read(&event_, Pointer(kRead));
    if (event) {
      return event;
    }
  }
  return std::nullopt;
}

absl::Status AttachStream::status() const { return rpc::FromGrpcStatus(status_); }

absl::Status AttachStream::Configure(v1::ConfigureRequest::WaitPolicy policy, int64_t timeout_us) {
  grpc::ClientContext context;
  context.set_deadline(After(timeout_us));
  v1::ConfigureRequest request;
  request.set_wait_policy(policy);
  v1::ConfigureResponse response;
  return rpc::FromGrpcStatus(stub_->Configure(&context, request, &response));
}

}  // namespace tandem::gpu_worker
