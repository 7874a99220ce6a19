#include "cli/plan/plan_flags.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/plan/model_catalog.h"
#include "common/base/status_macros.h"
#include "common/kv_layout/kv_layout.h"
#include "gpu_worker/cost_model/profile_cost_model.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr uint64_t kDefaultCpuKvBytes = uint64_t{32} << 30;
// Block ids are 32 bits.
constexpr int64_t kMaxPoolTokens = int64_t{1} << 34;
constexpr size_t kMaxPoints = 4000;

absl::Status Bad(const std::string& message) { return absl::InvalidArgumentError(message); }

template <typename T>
bool ReadNumber(absl::string_view text, T* value) {
  if constexpr (std::is_same_v<T, double>) {
    return absl::SimpleAtod(text, value);
  } else {
    return absl::SimpleAtoi(text, value);
  }
}

// "1,2.5,4"; empty: one 0, which stands for the default.
template <typename T>
absl::StatusOr<std::vector<T>> ReadList(const char* flag, const std::string& text, T min, T max) {
  std::vector<T> values;
  if (text.empty()) {
    return std::vector<T>{0};
  }
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    T value = 0;
    if (!ReadNumber(item, &value) || !(value >= min && value <= max)) {
      return Bad(absl::StrCat(flag, ": '", item, "'; allowed: numbers from ", min, " to ", max,
                              " with commas between"));
    }
    values.push_back(value);
  }
  return values;
}

DType DTypeOf(const std::string& name, DType automatic) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    if (name == DTypeName(dtype)) {
      return dtype;
    }
  }
  return automatic;
}

absl::Status ResolveTypes(const PlanFlags& flags, PlanSettings* settings) {
  const gpu_worker::DeviceProfile& profile = settings->profile;
  const bool has_bfloat16 = gpu_worker::PeakFlopsPerUs(profile, DType::kBFloat16) > 0;
  settings->dtype = DTypeOf(flags.dtype, has_bfloat16 ? DType::kBFloat16 : DType::kFloat16);
  if (gpu_worker::PeakFlopsPerUs(profile, settings->dtype) <= 0) {
    return Bad(absl::StrCat("--dtype ", flags.dtype, ": --gpu ", profile.name, " has gpu.tflops.",
                            DTypeName(settings->dtype), " 0"));
  }
  const DType automatic = settings->dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
  settings->cpu_kv_dtype = DTypeOf(flags.cpu_kv_dtype, automatic);
  return absl::OkStatus();
}

absl::Status ResolveGpuPool(const PlanFlags& flags, PlanSettings* settings) {
  const double memory = settings->profile.gpu_memory_gb * 1e9 * settings->tensor_parallel;
  const double weights = gpu_worker::WeightBytes(settings->shape, settings->dtype);
  const double token = gpu_worker::KvBytesPerToken(settings->shape, settings->dtype);
  const auto gigabytes = [](double bytes) { return absl::StrCat(bytes * 1e-9, " GB"); };
  const std::string sizes =
      absl::StrCat("the weights take ", gigabytes(weights), ", ", settings->tensor_parallel,
                   " x --gpu ", settings->profile.name, " has ", gigabytes(memory));
  if (flags.gpu_kv_tokens) {
    settings->gpu_kv_tokens = *flags.gpu_kv_tokens;
    if (weights + token * static_cast<double>(*flags.gpu_kv_tokens) > memory) {
      return Bad(absl::StrCat("--gpu-kv-tokens ", *flags.gpu_kv_tokens, " of ", token,
                              " bytes do not fit beside --model ", settings->model_name, ": ",
                              sizes));
    }
    return absl::OkStatus();
  }
  const double room = memory * flags.gpu_memory_utilization - weights;
  settings->gpu_kv_tokens = static_cast<int64_t>(std::max(room, 0.0) / token);
  if (settings->gpu_kv_tokens < flags.block_size) {
    return Bad(absl::StrCat("--model ", settings->model_name, " does not fit: ", sizes,
                            " and --gpu-memory-utilization is ", flags.gpu_memory_utilization));
  }
  return absl::OkStatus();
}

absl::Status ResolveCpuPool(const PlanFlags& flags, PlanSettings* settings) {
  if (flags.cpu_kv_tokens && flags.cpu_kv_bytes) {
    return Bad("--cpu-kv-tokens and --cpu-kv-size say the same; allowed: one of them");
  }
  const double token = gpu_worker::KvBytesPerToken(settings->shape, settings->cpu_kv_dtype);
  const auto bytes = static_cast<double>(flags.cpu_kv_bytes.value_or(kDefaultCpuKvBytes));
  const double tokens =
      flags.cpu_kv_tokens ? static_cast<double>(*flags.cpu_kv_tokens) : bytes / token;
  settings->cpu_kv_tokens =
      static_cast<int64_t>(std::min(tokens, static_cast<double>(kMaxPoolTokens)));
  const bool is_needed = settings->offload != std::vector<std::string>{"off"};
  if (is_needed && settings->cpu_kv_tokens < kv::kCpuBlockTokens) {
    return Bad(absl::StrCat(flags.cpu_kv_tokens ? "--cpu-kv-tokens" : "--cpu-kv-size", " gives ",
                            settings->cpu_kv_tokens, " tokens of ", token, " bytes; allowed: ",
                            kv::kCpuBlockTokens, " tokens and more, or --offload off"));
  }
  return absl::OkStatus();
}

absl::Status ResolveLengths(const PlanFlags& flags, PlanSettings* settings) {
  const int64_t model_len = settings->shape.max_position;
  settings->max_model_len =
      static_cast<int32_t>(flags.max_model_len.value_or(std::min(model_len, kMaxTokens)));
  if (settings->max_model_len > model_len) {
    return Bad(absl::StrCat("--max-model-len is ", settings->max_model_len,
                            "; the model allows 1 to ", model_len));
  }
  TANDEM_ASSIGN_OR_RETURN(settings->prompt_lens,
                          ReadList<int64_t>("--prompt-len", flags.prompt_lens, 1, kMaxTokens));
  TANDEM_ASSIGN_OR_RETURN(settings->output_lens,
                          ReadList<int64_t>("--output-len", flags.output_lens, 1, kMaxTokens));
  const bool has_lengths = !flags.prompt_lens.empty() || !flags.output_lens.empty();
  if (!flags.trace.empty()) {
    return has_lengths ? Bad("--trace gives the lengths; allowed beside it: no --prompt-len and "
                             "--output-len")
                       : absl::OkStatus();
  }
  if (flags.prompt_lens.empty() || flags.output_lens.empty() || !flags.requests) {
    return Bad(absl::StrCat(flags.prompt_lens.empty()   ? "--prompt-len"
                            : flags.output_lens.empty() ? "--output-len"
                                                        : "--requests",
                            " is missing; allowed: --trace FILE, or --prompt-len, --output-len and "
                            "--requests"));
  }
  const int64_t longest =
      *std::max_element(settings->prompt_lens.begin(), settings->prompt_lens.end()) +
      *std::max_element(settings->output_lens.begin(), settings->output_lens.end());
  if (static_cast<double>(longest) * (1 + flags.length_spread) > settings->max_model_len) {
    return Bad(absl::StrCat("--prompt-len and --output-len reach ", longest,
                            " tokens together; --max-model-len is ", settings->max_model_len));
  }
  return absl::OkStatus();
}

absl::Status ResolveSwitches(const PlanFlags& flags, gpu_worker::SchedulerSwitches* switches) {
  const std::pair<absl::string_view, bool*> known[] = {
      {"unified", &switches->unified},
      {"asymmetric", &switches->asymmetric},
      {"guard", &switches->guard},
      {"chunk-balancing", &switches->chunk_balancing}};
  for (const absl::string_view name : absl::StrSplit(flags.without, ',', absl::SkipWhitespace())) {
    const auto it = std::find_if(std::begin(known), std::end(known),
                                 [name](const auto& entry) { return entry.first == name; });
    if (it == std::end(known)) {
      return Bad(absl::StrCat("--without: '", name,
                              "'; allowed: unified, asymmetric, guard, chunk-balancing with commas "
                              "between"));
    }
    *it->second = false;
  }
  return absl::OkStatus();
}

absl::Status ResolveSweep(const PlanFlags& flags, PlanSettings* settings) {
  for (const absl::string_view name : absl::StrSplit(flags.offload, ',', absl::SkipWhitespace())) {
    TANDEM_RETURN_IF_ERROR(OffloadPolicyOf(std::string(name)).status());
    settings->offload.emplace_back(name);
  }
  if (settings->offload.empty()) {
    return OffloadPolicyOf("").status();
  }
  TANDEM_ASSIGN_OR_RETURN(settings->cpu_bandwidths,
                          ReadList<double>("--cpu-bandwidth", flags.cpu_bandwidths, 1e-3, 1e5));
  TANDEM_ASSIGN_OR_RETURN(settings->rates, ReadList<double>("--rates", flags.rates, 1e-6, 1e6));
  if (flags.concurrency > 0 && (!flags.rates.empty() || flags.find_rate || flags.deploy)) {
    return Bad("--concurrency and a rate contradict each other; allowed: one of them");
  }
  if (flags.find_rate || flags.deploy) {
    if (!flags.max_per_token_latency_s) {
      return Bad("--max-per-token-latency is missing; --find-rate and --deploy need it");
    }
    if (flags.deploy && (settings->rates.size() != 1 || settings->rates[0] <= 0)) {
      return Bad("--deploy needs one --rate");
    }
  }
  settings->max_per_token_latency_s = flags.max_per_token_latency_s.value_or(0);
  return absl::OkStatus();
}

// Model, GPU and pools.
void DeclareHardwareFlags(base::ConfigSpec* spec, PlanFlags* flags) {
  spec->String(
      "model", &flags->model,
      "llama-2-7b, llama-3.1-8b, llama-3.1-70b, a config.json, a folder with one, a .gguf");
  spec->String("gpu", &flags->gpu,
               "profile: " + absl::StrJoin(gpu_worker::BuiltInDeviceProfileNames(), ", ") +
                   ", or a .yaml file");
  spec->Int("tensor-parallel-size", &flags->tensor_parallel, 1, 64, "GPUs that share each layer");
  spec->Choice("dtype", &flags->dtype, {"auto", "float16", "bfloat16", "float32"},
               "of weights, activations and the GPU's KV");
  spec->String("cpu-bandwidth", &flags->cpu_bandwidths,
               "GB/s of KV that CPU attention reaches (kv_gb_per_s of tandem bench attention); "
               "several with commas; default: the profile's host");
  spec->OptionalInt("gpu-kv-tokens", &flags->gpu_kv_tokens, 16, kMaxPoolTokens,
                    "size of the GPU's KV pool; default: what the weights leave");
  spec->Double("gpu-memory-utilization", &flags->gpu_memory_utilization, 0.01, 1,
               "share of GPU memory that weights and KV take");
  spec->Bytes("cpu-kv-size", &flags->cpu_kv_bytes, "size of the CPU KV pool; default 32GiB");
  spec->OptionalInt("cpu-kv-tokens", &flags->cpu_kv_tokens, 0, kMaxPoolTokens,
                    "the same in tokens");
  spec->Choice("cpu-kv-dtype", &flags->cpu_kv_dtype,
               {"auto", "bfloat16", "int8", "fp8_e4m3", "float32"}, "of the CPU KV pool");
}

// What arrives, and when.
void DeclareLoadFlags(base::ConfigSpec* spec, PlanFlags* flags) {
  spec->String("trace", &flags->trace,
               "CSV of requests: [TIMESTAMP,] ContextTokens or prompt_tokens, GeneratedTokens or "
               "output_tokens");
  spec->String("prompt-len", &flags->prompt_lens, "tokens of each prompt; several with commas");
  spec->String("output-len", &flags->output_lens, "tokens of each answer; several with commas");
  spec->OptionalInt("requests", &flags->requests, 1, kMaxTokens,
                    "how many; with --trace its first ones");
  spec->Double("length-spread", &flags->length_spread, 0, 0.99,
               "lengths are uniform in the given ones times 1 - S to 1 + S");
  spec->String("rates", &flags->rates,
               "requests per second, at random (Poisson); several with commas");
  spec->String("rate", &flags->rates, "the same as --rates");
  spec->Bool("all-at-once", &flags->all_at_once,
             "without rate: ignore the trace's times (without times it is so anyway)");
  spec->Int("concurrency", &flags->concurrency, 0, 1 << 20,
            "a closed loop of so many requests at a time; 0: by rate or trace");
  spec->Double("measure-for", &flags->measure_for_s, 0, 1e9,
               "output tokens per second are those of so many seconds; 0: of the whole run");
  spec->Double("measure-from", &flags->measure_from_s, 0, 1e9,
               "seconds from the start after which --measure-for begins");
}

}  // namespace

absl::StatusOr<gpu_worker::OffloadPolicy> OffloadPolicyOf(const std::string& name) {
  using gpu_worker::OffloadPolicy;
  constexpr std::pair<const char*, OffloadPolicy> kPolicies[] = {
      {"off", OffloadPolicy::kOff},         {"auto", OffloadPolicy::kAuto},
      {"unified", OffloadPolicy::kUnified}, {"asymmetric", OffloadPolicy::kAsymmetric},
      {"all-cpu", OffloadPolicy::kAllCpu},  {"neo", OffloadPolicy::kNeo}};
  std::vector<std::string> allowed;
  for (const auto& [known, policy] : kPolicies) {
    if (name == known) {
      return policy;
    }
    allowed.emplace_back(known);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--offload: '", name, "'; allowed: ", absl::StrJoin(allowed, ", "), " with commas between"));
}

void DeclarePlanFlags(base::ConfigSpec* spec, PlanFlags* flags) {
  DeclareHardwareFlags(spec, flags);
  DeclareLoadFlags(spec, flags);
  spec->String("offload", &flags->offload,
               "off, auto, unified, asymmetric, all-cpu, neo; several with commas");
  spec->String("without", &flags->without,
               "parts of auto to switch off: unified, asymmetric, guard, chunk-balancing");
  spec->Int("max-inter-token-latency", &flags->max_inter_token_latency_ms, 0, 1'000'000,
            "milliseconds that steps with running decodes shall stay below; 0: no target");
  spec->Int("max-num-seqs", &flags->max_num_seqs, 1, 65536, "sequences at a time");
  spec->Int("max-num-batched-tokens", &flags->max_num_batched_tokens, 1, 1 << 20, "rows of a step");
  spec->Int("block-size", &flags->block_size, 16, 128, "tokens of a GPU block");
  spec->OptionalInt("max-model-len", &flags->max_model_len, 1, kMaxTokens,
                    "longest prompt and answer; default: the model's");
  spec->Choice("launch", &flags->launch, {"graph", "eager"},
               "how steps are launched: captured graphs, or kernel by kernel as a framework does");
  spec->Double("step-overhead-us", &flags->step_overhead_us, 0, 1e6,
               "between two steps: planning, launching, sampling's copy back");
  spec->Double("cpu-slowdown", &flags->cpu_slowdown, 1, 1000,
               "CPU attention takes so many times what is predicted");
  spec->Double("cpu-slowdown-from", &flags->cpu_slowdown_from_s, 0, 1e9, "seconds from the start");
  spec->Custom(
      "max-per-token-latency", "SECONDS",
      [flags](std::string_view text) {
        double value = 0;
        if (!absl::SimpleAtod({text.data(), text.size()}, &value) || !(value > 0 && value <= 1e6)) {
          return Bad("allowed: seconds above 0");
        }
        flags->max_per_token_latency_s = value;
        return absl::OkStatus();
      },
      "mean time of a request by its output tokens: the target of --find-rate, --deploy");
  spec->Bool("find-rate", &flags->find_rate, "find the highest rate that meets the target");
  spec->Bool("deploy", &flags->deploy,
             "find the smallest CPU bandwidth and KV size that meet the target at --rate");
  spec->Int("seed", &flags->seed, 0, int64_t{1} << 62, "of lengths and arrivals");
  spec->Int("jobs", &flags->jobs, 0, 1024, "simulations at a time; 0: one per core");
  spec->Bool("table", &flags->table, "a table instead of JSON lines");
  spec->String("html", &flags->html, "also write a page with plots");
}

absl::StatusOr<PlanSettings> ResolvePlanFlags(const PlanFlags& flags) {
  if (flags.model.empty() || flags.gpu.empty()) {
    return Bad(flags.model.empty() ? "--model is missing; --help lists what is allowed"
                                   : "--gpu is missing; --help lists what is allowed");
  }
  if (flags.block_size % 16 != 0 || kv::kCpuBlockTokens % flags.block_size != 0) {
    return Bad(absl::StrCat("--block-size is ", flags.block_size, "; allowed: 16, 32, 64, 128"));
  }
  PlanSettings settings;
  settings.flags = flags;
  settings.tensor_parallel = static_cast<int32_t>(flags.tensor_parallel);
  const absl::StatusOr<NamedShape> model = FindModelShape(flags.model);
  if (!model.ok()) {
    return Bad(absl::StrCat("--model: ", model.status().message()));
  }
  settings.model_name = model->name;
  settings.shape = model->shape;
  const absl::StatusOr<gpu_worker::DeviceProfile> profile =
      gpu_worker::LoadDeviceProfile(flags.gpu);
  if (!profile.ok()) {
    return Bad(absl::StrCat("--gpu: ", profile.status().message()));
  }
  settings.profile = *profile;
  TANDEM_RETURN_IF_ERROR(ResolveTypes(flags, &settings));
  TANDEM_RETURN_IF_ERROR(ResolveSweep(flags, &settings));
  TANDEM_RETURN_IF_ERROR(ResolveSwitches(flags, &settings.switches));
  TANDEM_RETURN_IF_ERROR(ResolveLengths(flags, &settings));
  TANDEM_RETURN_IF_ERROR(ResolveGpuPool(flags, &settings));
  TANDEM_RETURN_IF_ERROR(ResolveCpuPool(flags, &settings));
  const size_t points = settings.cpu_bandwidths.size() * settings.prompt_lens.size() *
                        settings.output_lens.size() * settings.rates.size() *
                        settings.offload.size();
  if (points > kMaxPoints) {
    return Bad(
        absl::StrCat("the lists make ", points, " simulations; allowed: up to ", kMaxPoints));
  }
  return settings;
}

}  // namespace tandem::cli
