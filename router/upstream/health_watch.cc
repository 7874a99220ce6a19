#include "router/upstream/health_watch.h"

#include <chrono>

namespace tandem::router {
namespace {

constexpr int32_t kStatusServing = 1;  // grpc.health.v1.HealthCheckResponse.SERVING

}  // namespace

HealthWatch::HealthWatch(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
  context_.set_wait_for_ready(true);
  stream_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
  stream_->StartCall(this);
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void HealthWatch::Advance(bool ok) {
  if (!ok) {
    phase_ = Phase::kEnded;
    return;
  }
  if (phase_ == Phase::kStarting) {
    phase_ = Phase::kWriting;
    stream_->WriteLast(google::protobuf::StringValue(), grpc::WriteOptions(), this);
    return;
  }
  has_response_ = phase_ == Phase::kReading;
  phase_ = Phase::kReading;
  if (!has_response_) {
    stream_->Read(&response_, this);
  }
}

HealthWatch::Event HealthWatch::Next(int64_t timeout_us) {
  const gpr_timespec deadline =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(timeout_us, GPR_TIMESPAN));
  while (phase_ != Phase::kEnded) {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) {
      return Event::kNothing;
    }
    Advance(ok);
    if (has_response_) {
      has_response_ = false;
      const bool serving = response_.value() == kStatusServing;
      stream_->Read(&response_, this);
      return serving ? Event::kServing : Event::kNotServing;
    }
  }
  return Event::kEnded;
}

}  // namespace tandem::router
