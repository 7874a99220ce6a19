#include "gpu_worker/service/worker.h"

#include <algorithm>
#include <future>
#include <random>

#include "absl/strings/str_join.h"
#include "common/base/config.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/tokenizer_spec_proto.h"
#include "common/tokenizer/tokenizer.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/service/cost_key.h"

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

// Answers of an emulated device mean nothing, and each one says so.
std::string Fingerprint(const PipelineOptions& options) {
  const std::string build = base::StrCat("tandem-", base::Version());
  const char* dtype = DTypeName(options.compute_dtype);
  if (options.device == "host" || options.device == "cuda") {
    return base::StrCat(build, "-", options.device, "-", dtype);
  }
  // "paced:PROFILE", which may be a path.
  std::string profile = options.device.substr(options.device.find(':') + 1);
  profile = profile.substr(profile.rfind('/') + 1);
  return base::StrCat("paced-", profile, "-", build, "-", dtype);
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
  description.set_system_fingerprint(Fingerprint(options.pipeline));
  description.set_worker_instance_id(RandomId());
  const GenerationDefaults& defaults = model.generation_defaults();
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

// For structured output; the router has its own. One that cannot be built is refused here, at
// start, like any other fault of the model's files. A model without one (null) serves token ids.
absl::StatusOr<std::shared_ptr<const tokenizer::Tokenizer>> BuildTokenizer(
    const model_files::ModelFiles& model, const std::string& path) {
  if (model.tokenizer().kind == tokenizer::TokenizerSpec::Kind::kNone) {
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> built =
      tokenizer::Tokenizer::Create(model.tokenizer());
  if (!built.ok()) {
    return absl::Status(built.status().code(),
                        base::StrCat(path, ": tokenizer: ", built.status().message()));
  }
  return *std::move(built);
}

// The tokenizer's end of text ends a sequence as those of config.json and generation_config.json
// do: many fine-tuned models name the end of a turn in tokenizer_config.json alone.
void AddEndOfText(const tokenizer::Tokenizer* tokenizer, EngineOptions* options) {
  const std::optional<int32_t> id = tokenizer == nullptr ? std::nullopt : tokenizer->eos_id();
  std::vector<int32_t>& ids = options->eos_token_ids;
  if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) {
    ids.push_back(*id);
  }
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
  auto tokenizer_built =
      std::async(std::launch::async, [&] { return BuildTokenizer(*model, flags.model); });
  TANDEM_ASSIGN_OR_RETURN(const MemoryInfo memory, ReadMemoryInfo());
  TANDEM_ASSIGN_OR_RETURN(
      options_, ResolveOptions(flags, *model, memory, DefaultComputeDType(DeviceOf(flags))));
  if (flags.device == "auto" && options_.pipeline.device == "host") {
    base::LogInfo("no GPU is used", {{"reason", std::string(device::CudaIsAvailable().message())}});
  }
  options_.pipeline.load_progress = [this](double share) { metrics_.SetLoaded(share); };
  absl::StatusOr<std::unique_ptr<PipelineRunner>> runner =
      PipelineRunner::Create(options_.pipeline, *model);
  GrammarOptions grammars;
  TANDEM_ASSIGN_OR_RETURN(grammars.tokenizer, tokenizer_built.get());
  TANDEM_RETURN_IF_ERROR(runner.status());
  runner_ = *std::move(runner);
  LimitModelLength(runner_->limits(), &options_.engine);
  AddEndOfText(grammars.tokenizer.get(), &options_.engine);
  served_ = Describe(flags, *model, options_);
  if (options_.engine.measure_costs) {
    options_.engine.cost_folder = CostFolder(flags.cost_tables);
    options_.engine.cost_key = CostKey(*model, options_.pipeline, runner_->device_name());
  }
  grammars.vocab_size = model->shape().vocab_size;
  grammars.eos_token_ids = options_.engine.eos_token_ids;
  grammars_ = GrammarService::Create(std::move(grammars));
  engine_ =
      Engine::Create(options_.engine, runner_.get(), clock_,
                     [this](const StepObservation& observation) { metrics_.Observe(observation); });
  loaded_.store(true);
  engine_->Start();
  const RunnerLimits& limits = runner_->limits();
  base::LogInfo("model loaded", {{"model", model->name()},
                                 {"device", runner_->device_name()},
                                 {"dtype", DTypeName(options_.pipeline.compute_dtype)},
                                 {"max_model_len", options_.engine.max_model_len},
                                 {"gpu_blocks", limits.num_gpu_blocks},
                                 {"cpu_blocks", limits.num_cpu_blocks},
                                 {"ms", (clock_->NowUs() - started_us) / 1000}});
  return absl::OkStatus();
}

CpuAttentionLink::Callbacks Worker::LinkCallbacks(size_t worker) {
  CpuAttentionLink::Callbacks callbacks;
  callbacks.on_up = [this, worker](const std::string& description) {
    base::LogInfo("CPU attention worker attached", {{"worker", static_cast<uint64_t>(worker)}});
    runner_->SetCpuWorkerUp(worker, true);
    const std::lock_guard lock(tier_mutex_);
    descriptions_[worker] = description;
    if (tier_.OnUp(worker)) {
      engine_->DescribeCpuWorker(absl::StrJoin(descriptions_, "; "));
      engine_->OnCpuWorkerUp();
    }
  };
  callbacks.on_down = [this, worker] {
    base::LogWarning("CPU attention worker lost; its sequences wait for the next one",
                     {{"worker", static_cast<uint64_t>(worker)}});
    runner_->SetCpuWorkerUp(worker, false);
    const std::lock_guard lock(tier_mutex_);
    if (tier_.OnDown(worker)) {
      engine_->OnCpuWorkerDown();
    }
  };
  callbacks.on_blocks_ready = [this, worker](int32_t num_blocks) {
    if (const absl::Status prepared = runner_->PrepareCpuBlocks(worker, num_blocks);
        !prepared.ok()) {
      base::LogError("blocks of the CPU KV pool stay unused: the device cannot reach them",
                     {{"worker", static_cast<uint64_t>(worker)}, {"error", prepared.ToString()}});
      return;
    }
    const std::lock_guard lock(tier_mutex_);
    engine_->OnCpuBlocksReady(tier_.OnBlocksReady(worker, num_blocks));
  };
  return callbacks;
}

void Worker::StartLinks() {
  const std::vector<exchange::DeviceSide*> exchanges = runner_->exchanges();
  tier_ = TierStatus(exchanges.size());
  descriptions_.resize(exchanges.size());
  for (size_t i = 0; i < exchanges.size(); ++i) {
    links_.push_back(
        CpuAttentionLink::Start({.socket_path = options_.cpu_attention_sockets[i],
                                 .cores_shared_with_device = options_.pipeline.device == "host"},
                                exchanges[i], LinkCallbacks(i)));
  }
}

absl::Status Worker::Serve(const WorkerFlags& flags) {
  StartLinks();
  inference_ = std::make_unique<InferenceService>(std::move(served_), engine_.get(), clock_,
                                                  grammars_.get());
  control_ =
      std::make_unique<WorkerControlService>(engine_.get(), clock_, [this] { BeginDrain(); });
  size_t cpu_token_bytes = 0;
  for (const exchange::DeviceSide* exchange : runner_->exchanges()) {
    const kv::PoolGeometry pool = exchange::PoolGeometryOf(exchange->header().geometry);
    cpu_token_bytes += pool.token_bytes() * static_cast<size_t>(pool.num_layers);
  }
  control_->set_cpu_token_bytes(cpu_token_bytes);
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

bool Worker::Healthy() {
  if (!loaded_.load()) {
    return true;
  }
  if (const absl::Status device = runner_->DeviceHealth(); !device.ok()) {
    base::LogError("the device is lost", {{"error", device.ToString()}});
    return false;
  }
  return liveness_.Check(engine_->snapshot());
}

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
  links_.clear();           // so do the links'
  grammars_.reset();        // its answers go to the engine
  engine_.reset();
}

}  // namespace tandem::gpu_worker
