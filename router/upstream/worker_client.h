#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "router/fleet/fleet.h"
#include "router/upstream/health_watch.h"
#include "tandem/v1/inference.grpc.pb.h"
#include "tandem/v1/worker_control.grpc.pb.h"

namespace tandem::router {

// Makes the tokenizer and chat template of a model; called on a worker's control thread.
using ModelTextBuilder = std::function<absl::StatusOr<std::shared_ptr<const ModelText>>(
    const tokenizer::TokenizerSpec&)>;

// The texts of all models in use, so that equal workers share one. Thread-safe.
class ModelTextCache {
 public:
  explicit ModelTextCache(ModelTextBuilder builder) : builder_(std::move(builder)) {}
  std::shared_ptr<const ModelText> Find(const std::string& sha256);
  absl::StatusOr<std::shared_ptr<const ModelText>> Build(const std::string& sha256,
                                                         const tokenizer::TokenizerSpec& spec);

 private:
  std::mutex mutex_;
  ModelTextBuilder builder_;
  std::map<std::string, std::weak_ptr<const ModelText>> texts_;
};

// The connection to one worker. A control thread watches its health, learns what it serves, fetches
// its tokenizer when that is new, and keeps the fleet's table right. Start and Stop once each.
class WorkerClient {
 public:
  // All outlive the client.
  WorkerClient(int index, Fleet* fleet, ModelTextCache* texts);
  ~WorkerClient() { Stop(); }

  void Start();
  void Stop();
  // Looks at the worker's health afresh; any thread.
  void Recheck();
  v1::Inference::Stub& stub() { return *stub_; }
  // Asks the worker how it is; waits up to the time. Any thread.
  absl::StatusOr<v1::WorkerState> GetState(int64_t timeout_us);

 private:
  void Run();
  // One health stream, until it ends or must be repeated.
  void WatchOnce();
  absl::Status LearnModel();
  absl::StatusOr<std::shared_ptr<const ModelText>> TextOf(const v1::GetModelResponse& model);
  absl::StatusOr<tokenizer::TokenizerSpec> FetchTokenizer();
  // Registers a call for cancellation by Stop; false: stopping.
  bool Register(grpc::ClientContext* context);
  void Unregister();
  bool stopping();
  void Pause(int64_t us);

  const int index_;
  Fleet* const fleet_;
  ModelTextCache* const texts_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<v1::WorkerControl::Stub> control_stub_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool recheck_ = false;
  HealthWatch* watch_ = nullptr;           // for Stop and Recheck
  grpc::ClientContext* call_ = nullptr;    // for Stop
  std::shared_ptr<const ModelText> text_;  // of the last model, kept while the worker is away
  std::string last_problem_;               // logged once
  std::thread thread_;
};

}  // namespace tandem::router
