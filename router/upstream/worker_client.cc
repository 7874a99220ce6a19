#include "router/upstream/worker_client.h"

#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/rpc/tokenizer_spec_proto.h"
#include "router/upstream/channel.h"

namespace tandem::router {
namespace {

constexpr int64_t kModelTimeoutUs = 5'000'000;
constexpr int64_t kTokenizerTimeoutUs = 60'000'000;
constexpr int64_t kWatchTickUs = 10'000'000;
constexpr int64_t kRewatchPauseUs = 10'000;
constexpr int64_t kFailedPauseUs = 200'000;
constexpr size_t kMaxTokenizerBytes = 256u << 20;
constexpr size_t kMaxServedNames = 64;
constexpr int32_t kMaxVocabSize = 1 << 24;

void SetTimeout(grpc::ClientContext* context, int64_t timeout_us) {
  context->set_deadline(std::chrono::system_clock::time_point(
      std::chrono::microseconds(base::SystemClock().UnixUs() + timeout_us)));
}

template <typename T, typename V>
void CopyIf(bool present, V value, std::optional<T>* out) {
  if (present) {
    *out = value;
  }
}

absl::StatusOr<ModelInfo> ModelInfoOf(const v1::GetModelResponse& response) {
  ModelInfo info;
  info.served_names.assign(response.served_model_names().begin(),
                           response.served_model_names().end());
  if (info.served_names.empty()) {
    info.served_names.push_back(response.model_id());
  }
  if (info.served_names.size() > kMaxServedNames || info.served_names[0].empty()) {
    return absl::InvalidArgumentError("the worker gives no usable model name");
  }
  if (response.max_model_len() < 1 || response.vocab_size() < 1 ||
      response.vocab_size() > kMaxVocabSize) {
    return absl::InvalidArgumentError("the worker gives a bad max_model_len or vocab_size");
  }
  info.root = response.model_id();
  info.max_model_len = response.max_model_len();
  info.vocab_size = response.vocab_size();
  info.system_fingerprint = response.system_fingerprint();
  info.tokenizer_sha256 = response.tokenizer_sha256();
  info.created_unix_s = base::SystemClock().UnixUs() / 1'000'000;
  const v1::GenerationDefaults& defaults = response.generation_defaults();
  CopyIf(defaults.has_temperature(), defaults.temperature(), &info.defaults.temperature);
  CopyIf(defaults.has_top_k(), defaults.top_k(), &info.defaults.top_k);
  CopyIf(defaults.has_top_p(), defaults.top_p(), &info.defaults.top_p);
  CopyIf(defaults.has_min_p(), defaults.min_p(), &info.defaults.min_p);
  CopyIf(defaults.has_repetition_penalty(), defaults.repetition_penalty(),
         &info.defaults.repetition_penalty);
  info.defaults.eos_token_ids.assign(defaults.eos_token_ids().begin(),
                                     defaults.eos_token_ids().end());
  return info;
}

}  // namespace

std::shared_ptr<const ModelText> ModelTextCache::Find(const std::string& sha256) {
  std::lock_guard lock(mutex_);
  const auto it = texts_.find(sha256);
  return it == texts_.end() ? nullptr : it->second.lock();
}

absl::StatusOr<std::shared_ptr<const ModelText>> ModelTextCache::Build(
    const std::string& sha256, const tokenizer::TokenizerSpec& spec) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const ModelText> text, builder_(spec));
  std::lock_guard lock(mutex_);
  std::erase_if(texts_, [](const auto& entry) { return entry.second.expired(); });
  texts_[sha256] = text;
  return text;
}

WorkerClient::WorkerClient(int index, Fleet* fleet, ModelTextCache* texts)
    : index_(index), fleet_(fleet), texts_(texts) {
  channel_ = MakeWorkerChannel(fleet_->address(index_));
  stub_ = v1::Inference::NewStub(channel_);
  control_stub_ = v1::WorkerControl::NewStub(channel_);
}

absl::StatusOr<v1::WorkerState> WorkerClient::GetState(int64_t timeout_us) {
  grpc::ClientContext context;
  SetTimeout(&context, timeout_us);
  v1::WorkerState state;
  const grpc::Status status = control_stub_->GetState(&context, v1::GetStateRequest(), &state);
  if (!status.ok()) {
    return rpc::FromGrpcStatus(status);
  }
  return state;
}

void WorkerClient::Start() {
  thread_ = std::thread([this] { Run(); });
}

void WorkerClient::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (watch_ != nullptr) {
      watch_->Cancel();
    }
    if (call_ != nullptr) {
      call_->TryCancel();
    }
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void WorkerClient::Recheck() {
  std::lock_guard lock(mutex_);
  recheck_ = true;
  if (watch_ != nullptr) {
    watch_->Cancel();
  }
}

void WorkerClient::Run() {
  while (!stopping()) {
    WatchOnce();
    fleet_->SetLost(index_);
    Pause(kRewatchPauseUs);
  }
}

void WorkerClient::WatchOnce() {
  HealthWatch watch(channel_);
  {
    std::lock_guard lock(mutex_);
    if (stop_) {
      return;
    }
    watch_ = &watch;
    recheck_ = false;
  }
  bool failed = false;
  bool heard = false;
  for (bool open = true; open && !failed && !stopping();) {
    switch (watch.Next(kWatchTickUs)) {
      case HealthWatch::Event::kServing:
        if (const absl::Status status = LearnModel(); !status.ok()) {
          failed = true;
          if (last_problem_ != status.message()) {
            last_problem_ = std::string(status.message());
            base::LogWarning("worker cannot be used",
                             {{"worker", fleet_->address(index_)}, {"error", last_problem_}});
          }
        }
        break;
      case HealthWatch::Event::kNotServing:
        fleet_->SetRefusing(index_);
        base::LogInfo("worker takes no requests", {{"worker", fleet_->address(index_)}});
        break;
      case HealthWatch::Event::kEnded:
        open = false;
        failed = !heard;
        break;
      case HealthWatch::Event::kNothing:
        continue;
    }
    heard = true;
  }
  {
    std::lock_guard lock(mutex_);
    watch_ = nullptr;
  }
  if (failed) {
    Pause(kFailedPauseUs);
  }
}

absl::Status WorkerClient::LearnModel() {
  v1::GetModelResponse response;
  {
    grpc::ClientContext context;
    SetTimeout(&context, kModelTimeoutUs);
    if (!Register(&context)) {
      return absl::CancelledError("stopping");
    }
    const grpc::Status status = stub_->GetModel(&context, v1::GetModelRequest(), &response);
    Unregister();
    TANDEM_RETURN_IF_ERROR(rpc::FromGrpcStatus(status));
  }
  TANDEM_ASSIGN_OR_RETURN(ModelInfo info, ModelInfoOf(response));
  TANDEM_ASSIGN_OR_RETURN(info.text, TextOf(response));
  text_ = info.text;
  last_problem_.clear();
  {
    std::lock_guard lock(mutex_);
    if (recheck_) {  // what was learned may be older than the doubt
      return absl::OkStatus();
    }
  }
  base::LogInfo("worker is ready", {{"worker", fleet_->address(index_)},
                                    {"model", info.served_names[0]},
                                    {"instance", response.worker_instance_id()}});
  fleet_->SetReady(index_, std::move(info));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ModelText>> WorkerClient::TextOf(
    const v1::GetModelResponse& model) {
  if (model.tokenizer_sha256().empty()) {
    return nullptr;
  }
  if (std::shared_ptr<const ModelText> known = texts_->Find(model.tokenizer_sha256())) {
    return known;
  }
  TANDEM_ASSIGN_OR_RETURN(const tokenizer::TokenizerSpec spec, FetchTokenizer());
  return texts_->Build(model.tokenizer_sha256(), spec);
}

absl::StatusOr<tokenizer::TokenizerSpec> WorkerClient::FetchTokenizer() {
  grpc::ClientContext context;
  SetTimeout(&context, kTokenizerTimeoutUs);
  if (!Register(&context)) {
    return absl::CancelledError("stopping");
  }
  std::string bytes;
  bool too_large = false;
  const auto reader = stub_->GetTokenizer(&context, v1::GetTokenizerRequest());
  v1::GetTokenizerResponse response;
  while (!too_large && reader->Read(&response)) {
    bytes += response.chunk();
    too_large = bytes.size() > kMaxTokenizerBytes;
  }
  if (too_large) {
    context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  Unregister();
  if (too_large) {
    return absl::ResourceExhaustedError("the worker's tokenizer is larger than 256 MiB");
  }
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpcStatus(status));
  v1::TokenizerSpec proto;
  if (!proto.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("the worker's tokenizer is not a TokenizerSpec");
  }
  if (proto.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED) {
    return tokenizer::TokenizerSpec();
  }
  return rpc::TokenizerSpecFromProto(proto);
}

bool WorkerClient::Register(grpc::ClientContext* context) {
  std::lock_guard lock(mutex_);
  call_ = stop_ ? nullptr : context;
  return call_ != nullptr;
}

void WorkerClient::Unregister() {
  std::lock_guard lock(mutex_);
  call_ = nullptr;
}

bool WorkerClient::stopping() {
  std::lock_guard lock(mutex_);
  return stop_;
}

void WorkerClient::Pause(int64_t us) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, std::chrono::microseconds(us), [this] { return stop_; });
}

}  // namespace tandem::router
