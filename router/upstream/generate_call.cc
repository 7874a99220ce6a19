#include "router/upstream/generate_call.h"

#include <chrono>
#include <utility>

#include "common/rpc/status.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxQueuedResponses = 64;

}  // namespace

GenerateCall::GenerateCall(CompletionLoop* loop) : loop_(loop) {
  start_tag_.operation = Operation::kStart;
  read_tag_.operation = Operation::kRead;
  finish_tag_.operation = Operation::kFinish;
  start_tag_.call = read_tag_.call = finish_tag_.call = this;
}

std::shared_ptr<GenerateCall> GenerateCall::Start(v1::Inference::Stub& stub, CompletionLoop& loop,
                                                  const v1::GenerateRequest& request,
                                                  std::function<void()> notify) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(&loop));
  loop.Add(call.get());
  std::lock_guard lock(call->mutex_);
  call->notify_ = std::move(notify);
  call->self_ = call;
  if (request.deadline_unix_us() > 0) {
    call->context_.set_deadline(std::chrono::system_clock::time_point(
        std::chrono::microseconds(request.deadline_unix_us())));
  }
  call->reader_ = stub.PrepareAsyncGenerate(&call->context_, request, &loop.queue());
  call->open_operations_ = 2;
  call->reader_->StartCall(&call->start_tag_);
  // The first read need not wait for the start: gRPC orders them, and a thread switch is saved.
  call->reader_->Read(&call->incoming_, &call->read_tag_);
  return call;
}

void GenerateCall::OnCompletion(Operation operation, bool ok) {
  std::shared_ptr<GenerateCall> last;  // destroyed after the lock
  std::function<void()> notify;
  {
    std::lock_guard lock(mutex_);
    --open_operations_;
    if (operation == Operation::kRead) {
      OnRead(ok);
    } else if (operation == Operation::kFinish) {
      OnFinish();
    }
    if (operation != Operation::kStart && !notified_ && !cancelled_ &&
        (arrived_.end || !arrived_.responses.empty())) {
      notified_ = true;
      notify = notify_;
    }
    if (arrived_.end && open_operations_ == 0) {
      notify_ = nullptr;
      last = std::move(self_);
    }
  }
  if (notify) {
    notify();
  }
  if (last) {
    loop_->Remove(this);
  }
}

void GenerateCall::OnRead(bool ok) {
  if (!ok) {
    ++open_operations_;
    reader_->Finish(&status_, &finish_tag_);
    return;
  }
  if (!cancelled_) {
    arrived_.responses.push_back(std::move(incoming_));
  }
  incoming_.Clear();
  if (arrived_.responses.size() >= kMaxQueuedResponses) {
    paused_ = true;
    return;
  }
  ++open_operations_;
  reader_->Read(&incoming_, &read_tag_);
}

void GenerateCall::OnFinish() {
  AttemptEnd end;
  const absl::Status status = rpc::FromGrpcStatus(status_);
  end.code = status.code();
  end.message = std::string(status.message());
  if (const auto detail = rpc::ErrorDetailOf(status)) {
    end.param = detail->param();
    end.error_code = detail->code();
  }
  arrived_.end = std::move(end);
}

GenerateCall::Batch GenerateCall::Take() {
  std::lock_guard lock(mutex_);
  notified_ = false;
  Batch batch;
  batch.responses.swap(arrived_.responses);
  batch.end = arrived_.end;
  if (paused_) {
    paused_ = false;
    ++open_operations_;
    reader_->Read(&incoming_, &read_tag_);
  }
  return batch;
}

void GenerateCall::Cancel() {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  dropped.swap(notify_);
  context_.TryCancel();
  if (paused_) {  // the read that fails leads to the end
    paused_ = false;
    ++open_operations_;
    reader_->Read(&incoming_, &read_tag_);
  }
}

}  // namespace tandem::router
