#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "gpu_worker/engine/engine.h"
#include "tandem/v1/worker_control.grpc.pb.h"

namespace tandem::gpu_worker {

// The WorkerControl protocol on an engine, which must outlive the gRPC server. Owns the thread on
// which drains wait.
class WorkerControlService : public v1::WorkerControl::CallbackService {
 public:
  // `begin_drain` makes the worker not ready and starts the engine's drain; any thread, idempotent.
  WorkerControlService(Engine* engine, const base::Clock* clock, std::function<void()> begin_drain);
  // Ends waiting drains with what is left by then.
  ~WorkerControlService() override;

  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::GetStateRequest* request,
                                     v1::WorkerState* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  // K and V of one token in the CPU tier, all layers; before the server starts.
  void set_cpu_token_bytes(size_t bytes) { cpu_token_bytes_ = bytes; }
  // Ends waiting drains; before the server is shut down.
  void Stop();

 private:
  struct WaitingDrain {
    int64_t deadline_us;
    grpc::ServerUnaryReactor* reactor;
    v1::DrainResponse* response;
  };
  void WaitLoop();

  Engine* engine_;
  const base::Clock* clock_;
  size_t cpu_token_bytes_ = 0;
  std::function<void()> begin_drain_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<WaitingDrain> drains_;
  std::thread thread_;
};

}  // namespace tandem::gpu_worker
