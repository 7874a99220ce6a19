#include "gpu_worker/service/worker.h"

#include <algorithm>
#include <future>
#include <random>

#include "common/base/config.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/tokenizer_spec_proto.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kStuckLimitUs = 60'000'000;
constexpr int64_t kCallsEndUs = 2'000'000;

std::string MetricsHost(const WorkerFlags& flags) {
  if (!flags.metrics_host.empty()) {
    return flags.metrics_host;
  }
  if (flags.listen.starts_with("unix:")) {
    return "127.0.0.1";
  }
  std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

std::string RandomId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    id += base::StrCat(absl::Hex(device(), absl::kZeroPad8));
  }
  return id;
}

ServedModel Describe(const WorkerFlags& flags, const model_files::ModelFiles& model,
                     const WorkerOptions& options) {
  ServedModel served;
  v1::GetModelResponse& description = served.description;
  description.set_model_id(model.name());
  for (const std::string& name : flags.served_model_names) {
    description.add_served_model_names(name);
  }
  if (flags.served_model_names.empty()) {
    description.add_served_model_names(model.name());
  }
  description.set_max_model_len(options.engine.max_model_len);
  description.set_vocab_size(model.shape().vocab_size);
  description.set_system_fingerprint(base::StrCat("tandem-", base::Version(), "-",
                                                  options.pipeline.device, "-",
                                                  DTypeName(options.pipeline.compute_dtype)));
  description.set_worker_instance_id(RandomId());
  const model_files::GenerationDefaults& defaults = model.generation_defaults();
  v1::GenerationDefaults* out = description.mutable_generation_defaults();
  if (defaults.temperature) {
    out->set_temperature(*defaults.temperature);
  }
  if (defaults.top_k) {
    out->set_top_k(*defaults.top_k);
  }
  if (defaults.top_p) {
    out->set_top_p(*defaults.top_p);
  }
  if (defaults.min_p) {
    out->set_min_p(*defaults.min_p);
  }
  if (defaults.repetition_penalty) {
    out->set_repetition_penalty(*defaults.repetition_penalty);
  }
  for (const int32_t id : options.engine.eos_token_ids) {
    out->add_eos_token_ids(id);
  }
  served.tokenizer = rpc::TokenizerSpecToProto(model.tokenizer()).SerializeAsString();
  return served;
}

}  // namespace

Worker::Worker(const base::Clock* clock)
    : clock_(clock),
      registry_(telemetry::Registry::Create()),
      metrics_(registry_.get()),
      liveness_(clock, kStuckLimitUs) {}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerFlags& flags,
                                                      const base::Clock* clock) {
  TANDEM_RETURN_IF_ERROR(CheckFlags(flags));
  std::unique_ptr<Worker> worker(new Worker(clock));
  TANDEM_RETURN_IF_ERROR(worker->StartMetrics(flags));
  TANDEM_RETURN_IF_ERROR(worker->Load(flags));
  TANDEM_RETURN_IF_ERROR(worker->Serve(flags));
  return worker;
}

namespace {

// The router builds the tokenizer; one that cannot be built is refused here, at start, like any
// other fault of the model's files. A model without one serves token ids.
absl::Status CheckTokenizer(const model_files::ModelFiles& model) {
  if (model.tokenizer().kind == tokenizer::TokenizerSpec::Kind::kNone) {
    return absl::OkStatus();
  }
  const absl::Status status = tokenizer::Tokenizer::Create(model.tokenizer()).status();
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), "the model's tokenizer: " + std::string(status.message()));
}

// No sequence can be longer than the larger pool that its policy uses: what is promised to clients
// and what admission accepts must be the same.
void LimitModelLength(const RunnerLimits& limits, EngineOptions* options) {
  const int64_t gpu_tokens = int64_t{limits.num_gpu_blocks} * limits.gpu_block_tokens;
  const int64_t cpu_tokens = int64_t{limits.num_cpu_blocks} * limits.cpu_block_tokens;
  const int64_t most = options->offload == OffloadPolicy::kOff ? gpu_tokens
                       : options->offload == OffloadPolicy::kAllCpu
                           ? cpu_tokens
                           : std::max(gpu_tokens, cpu_tokens);
  if (most < options->max_model_len) {
    base::LogWarning("the KV cache pools hold no sequence of the model's length",
                     {{"max_model_len", options->max_model_len}, {"reduced_to", most}});
    options->max_model_len = static_cast<int32_t>(most);
  }
}

}  // namespace

absl::Status Worker::StartMetrics(const WorkerFlags& flags) {
  registry_->AddCollectCallback([this] {
    if (loaded_.load()) {
      metrics_.Update(engine_->snapshot());
    }
  });
  TANDEM_ASSIGN_OR_RETURN(
      metrics_server_,
      telemetry::MetricsServer::Start(
          MetricsHost(flags), static_cast<int>(flags.metrics_port), registry_.get(),
          [this] { return Healthy(); }, [this] { return Ready(); }));
  return absl::OkStatus();
}

absl::Status Worker::Load(const WorkerFlags& flags) {
  const int64_t started_us = clock_->NowUs();
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<model_files::ModelFiles> model,
      model_files::OpenModel(
          flags.model, {.dummy_weights = flags.load_format == "dummy",
                        .max_model_len = static_cast<int32_t>(flags.max_model_len.value_or(0))}));
  std::future<absl::Status> tokenizer_checked =
      std::async(std::launch::async, [&model] { return CheckTokenizer(*model); });
  TANDEM_ASSIGN_OR_RETURN(const MemoryInfo memory, ReadMemoryInfo());
  TANDEM_ASSIGN_OR_RETURN(options_,
                          ResolveOptions(flags, *model, memory, DefaultComputeDType("host")));
  absl::StatusOr<std::unique_ptr<PipelineRunner>> runner =
      PipelineRunner::Create(options_.pipeline, *model);
  TANDEM_RETURN_IF_ERROR(tokenizer_checked.get());
  TANDEM_RETURN_IF_ERROR(runner.status());
  runner_ = *std::move(runner);
  LimitModelLength(runner_->limits(), &options_.engine);
  served_ = Describe(flags, *model, options_);
  engine_ =
      Engine::Create(options_.engine, runner_.get(), clock_,
                     [this](const StepObservation& observation) { metrics_.Observe(observation); });
  loaded_.store(true);
  engine_->Start();
  const RunnerLimits& limits = runner_->limits();
  base::LogInfo("model loaded", {{"model", model->name()},
                                 {"dtype", DTypeName(options_.pipeline.compute_dtype)},
                                 {"max_model_len", options_.engine.max_model_len},
                                 {"gpu_blocks", limits.num_gpu_blocks},
                                 {"cpu_blocks", limits.num_cpu_blocks},
                                 {"ms", (clock_->NowUs() - started_us) / 1000}});
  return absl::OkStatus();
}

void Worker::StartLink(const std::string& socket_path) {
  CpuAttentionLink::Callbacks callbacks;
  callbacks.on_up = [this] {
    base::LogInfo("CPU attention worker attached");
    runner_->SetCpuWorkerUp(true);
    engine_->OnCpuWorkerUp();
  };
  callbacks.on_down = [this] {
    base::LogWarning("CPU attention worker lost; its sequences wait for the next one");
    runner_->SetCpuWorkerUp(false);
    engine_->OnCpuWorkerDown();
  };
  callbacks.on_blocks_ready = [this](int32_t num_blocks) { engine_->OnCpuBlocksReady(num_blocks); };
  link_ = CpuAttentionLink::Start({.socket_path = socket_path, .cores_shared_with_device = true},
                                  runner_->exchange(), std::move(callbacks));
}

absl::Status Worker::Serve(const WorkerFlags& flags) {
  if (!options_.cpu_attention_socket.empty() && runner_->exchange() != nullptr) {
    StartLink(options_.cpu_attention_socket);
  }
  inference_ = std::make_unique<InferenceService>(std::move(served_), engine_.get(), clock_);
  control_ =
      std::make_unique<WorkerControlService>(engine_.get(), clock_, [this] { BeginDrain(); });
  {
    // A drain that is asked for at once waits until there is a server to turn off.
    const std::lock_guard lock(drain_mutex_);
    TANDEM_ASSIGN_OR_RETURN(
        server_, rpc::Server::Start(
                     {.address = flags.listen, .services = {inference_.get(), control_.get()}}));
  }
  serving_.store(true);
  base::LogInfo("serving",
                {{"address", server_->address()}, {"metrics_port", metrics_server_->port()}});
  if (!flags.port_file.empty()) {
    return base::WritePortFile(flags.port_file, {metrics_server_->port(), server_->port()});
  }
  return absl::OkStatus();
}

bool Worker::Healthy() { return !loaded_.load() || liveness_.Check(engine_->snapshot()); }

void Worker::BeginDrain() {
  const std::lock_guard lock(drain_mutex_);
  if (draining_.exchange(true)) {
    return;
  }
  base::LogInfo("draining");
  if (server_ != nullptr) {
    server_->SetServing(false);
  }
  engine_->BeginDrain();
}

void Worker::Shutdown() {
  serving_.store(false);
  if (control_ != nullptr) {
    control_->Stop();
  }
  if (server_ != nullptr) {
    server_->Shutdown(kCallsEndUs);
  }
}

Worker::~Worker() {
  Shutdown();
  server_.reset();
  control_.reset();
  inference_.reset();
  metrics_server_.reset();  // its callbacks read the engine
  link_.reset();            // so do the link's
  engine_.reset();
}

}  // namespace tandem::gpu_worker
