#include "gpu_worker/service/worker_control_service.h"

#include <algorithm>

namespace tandem::gpu_worker {
namespace {

constexpr size_t kMaxWaitingDrains = 64;
constexpr int kMaxDrainMs = 3'600'000;
constexpr int64_t kPollUs = 20'000;

int32_t SequencesLeft(const EngineSnapshot& snapshot) {
  return snapshot.waiting + snapshot.prefill + snapshot.gpu_decode + snapshot.cpu_decode +
         snapshot.moving;
}

}  // namespace

WorkerControlService::WorkerControlService(Engine* engine, const base::Clock* clock,
                                           std::function<void()> begin_drain)
    : engine_(engine),
      clock_(clock),
      begin_drain_(std::move(begin_drain)),
      thread_([this] { WaitLoop(); }) {}

WorkerControlService::~WorkerControlService() { Stop(); }

void WorkerControlService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

grpc::ServerUnaryReactor* WorkerControlService::GetState(grpc::CallbackServerContext* context,
                                                         const v1::GetStateRequest*,
                                                         v1::WorkerState* response) {
  const EngineSnapshot s = engine_->snapshot();
  response->set_waiting(s.waiting);
  response->set_running(SequencesLeft(s) - s.waiting);
  response->set_gpu_blocks_total(s.gpu_blocks_free + s.gpu_blocks_used + s.gpu_blocks_cached);
  response->set_gpu_blocks_free(s.gpu_blocks_free);
  response->set_cpu_blocks_total(s.cpu_blocks_free + s.cpu_blocks_used + s.cpu_blocks_cached);
  response->set_cpu_blocks_free(s.cpu_blocks_free);
  response->set_cpu_attention_up(s.cpu_attention_up);
  response->set_draining(s.draining);
  response->set_steps(s.progress);
  response->set_gpu_blocks_used(s.gpu_blocks_used);
  response->set_cpu_blocks_used(s.cpu_blocks_used);
  response->set_decode_tokens_gpu(s.decode_tokens_gpu);
  response->set_decode_tokens_cpu(s.decode_tokens_cpu);
  response->set_steps_gpu_only(s.steps[0]);
  response->set_steps_unified(s.steps[1]);
  response->set_steps_asymmetric(s.steps[2]);
  response->set_cpu_attention_read_bytes(s.cpu_context_tokens * cpu_token_bytes_);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* WorkerControlService::Drain(grpc::CallbackServerContext* context,
                                                      const v1::DrainRequest* request,
                                                      v1::DrainResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->timeout_ms() < 0 || request->timeout_ms() > kMaxDrainMs) {
    reactor->Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                 "timeout_ms: allowed: 0 to " + std::to_string(kMaxDrainMs)));
    return reactor;
  }
  begin_drain_();
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || drains_.size() >= kMaxWaitingDrains) {
      reactor->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                   "too many calls wait for the drain, which goes on"));
      return reactor;
    }
    drains_.push_back({.deadline_us = clock_->NowUs() + int64_t{request->timeout_ms()} * 1000,
                       .reactor = reactor,
                       .response = response});
  }
  wake_.notify_all();
  return reactor;
}

void WorkerControlService::WaitLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !drains_.empty(); });
    if (drains_.empty()) {
      return;
    }
    lock.unlock();
    const bool idle = engine_->WaitIdle(kPollUs);
    const int32_t left = idle ? 0 : SequencesLeft(engine_->snapshot());
    const int64_t now = clock_->NowUs();
    lock.lock();
    std::erase_if(drains_, [&](const WaitingDrain& drain) {
      if (!idle && !stop_ && now < drain.deadline_us) {
        return false;
      }
      drain.response->set_sequences_left(left);
      drain.reactor->Finish(grpc::Status::OK);
      return true;
    });
  }
}

}  // namespace tandem::gpu_worker
