#include "cli/bench/attention_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/bench/attention_pool.h"
#include "cli/bench/cpu_worker_harness.h"
#include "cli/bench/read_limit.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/status_macros.h"
#include "common/shm/residency.h"
#include "common/topology/topology.h"

namespace tandem::cli {
namespace {

constexpr int kBadUsage = 2;
constexpr int64_t kStepUs = 600'000'000;
constexpr int64_t kCacheTimes = 8;  // working set in units of the last-level cache
// A round is at least as long as a decode step of a model is deep: what lies between two steps is
// shared by that many layers there, too.
constexpr int64_t kLeastLayersPerRound = 32;

struct Flags {
  int64_t q_heads = 32, kv_heads = 8, head_dim = 128, batch = 16, context = 1024;
  std::string contexts;
  std::optional<int64_t> layers;
  std::optional<int64_t> threads;
  std::string kv_dtype = "bfloat16";
  std::string isa = "auto";
  int64_t rounds = 9;
  bool table = false;
};

// What is measured.
struct Plan {
  std::vector<int32_t> contexts;  // tokens of each sequence
  int64_t tokens = 0;             // their sum
  exchange::Geometry geometry{};
  kv::PoolGeometry pool;
  std::vector<int> cpus;  // of the attention threads
};

constexpr std::pair<const char*, DType> kKvDTypes[] = {{"float32", DType::kFloat32},
                                                       {"bfloat16", DType::kBFloat16},
                                                       {"int8", DType::kInt8},
                                                       {"fp8_e4m3", DType::kFloat8E4M3}};

void Declare(base::ConfigSpec& spec, Flags& flags) {
  std::vector<std::string> dtypes;
  for (const auto& [name, dtype] : kKvDTypes) {
    dtypes.emplace_back(name);
  }
  spec.Int("q-heads", &flags.q_heads, 1, 1024, "query heads");
  spec.Int("kv-heads", &flags.kv_heads, 1, 1024, "KV heads");
  spec.Int("head-dim", &flags.head_dim, 16, 256, "dimensions of a head");
  spec.Int("batch", &flags.batch, 1, 65536, "sequences");
  spec.Int("context", &flags.context, 1, 1 << 24, "tokens of each sequence");
  spec.String("contexts", &flags.contexts,
              "tokens of each sequence, as a list with commas; instead of --batch and --context");
  spec.Choice("kv-dtype", &flags.kv_dtype, dtypes, "type of the KV cache");
  spec.OptionalInt("threads", &flags.threads, 1, 4096, "threads (default: one per core)");
  spec.OptionalInt("layers", &flags.layers, 1, 4096,
                   "layers (default: so many that K and V are 8 times the last-level cache)");
  spec.Choice("isa", &flags.isa, attention::IsaChoices(), "instruction set");
  spec.Int("rounds", &flags.rounds, 1, 1000, "rounds, of which the median counts");
  spec.Bool("table", &flags.table, "a table instead of JSON");
}

// Of this process's CPUs; at least 16 MiB, which is also for machines that do not tell.
int64_t LastLevelCacheBytes() {
  static const int64_t bytes = [] {
    const auto topology = topology::Topology::Load();
    return topology.ok() ? (*topology)->snapshot().last_level_cache_bytes : 0;
  }();
  return std::max<int64_t>(bytes, 16 << 20);
}

// Eight times the last-level cache, but not more than a third of the memory.
int64_t ChooseLayers(int64_t layer_bytes) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t wanted = std::min(LastLevelCacheBytes() * kCacheTimes, memory / 3);
  return std::clamp<int64_t>((wanted + layer_bytes - 1) / layer_bytes, 2, 4096);
}

absl::StatusOr<std::vector<int32_t>> ContextsOf(const Flags& flags) {
  if (flags.contexts.empty()) {
    return std::vector<int32_t>(static_cast<size_t>(flags.batch),
                                static_cast<int32_t>(flags.context));
  }
  std::vector<int32_t> contexts;
  for (const auto part : absl::StrSplit(flags.contexts, ',')) {
    int32_t tokens = 0;
    if (!absl::SimpleAtoi(part, &tokens) || tokens < 1 || tokens > (1 << 24)) {
      return absl::InvalidArgumentError(
          "--contexts; allowed: numbers from 1 to 16777216 with commas between");
    }
    contexts.push_back(tokens);
  }
  return contexts;
}

DType KvDTypeOf(const Flags& flags) {
  for (const auto& [name, dtype] : kKvDTypes) {
    if (flags.kv_dtype == name) {
      return dtype;
    }
  }
  return DType::kBFloat16;
}

void SetGeometry(const Flags& flags, Plan* plan) {
  exchange::Geometry& geometry = plan->geometry;
  const DType dtype = KvDTypeOf(flags);
  geometry.num_q_heads = static_cast<uint32_t>(flags.q_heads);
  geometry.num_kv_heads = static_cast<uint32_t>(flags.kv_heads);
  geometry.head_dim = static_cast<uint32_t>(flags.head_dim);
  geometry.compute_dtype =
      static_cast<uint32_t>(dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16);
  geometry.kv_dtype = static_cast<uint32_t>(dtype);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = static_cast<uint32_t>(plan->contexts.size());
  for (const int32_t tokens : plan->contexts) {
    plan->tokens += tokens;
    geometry.num_blocks +=
        static_cast<uint64_t>((tokens + kv::kCpuBlockTokens - 1) / kv::kCpuBlockTokens);
  }
  geometry.max_table_entries = geometry.num_blocks;
  geometry.extent_bytes = 16 * exchange::kHugePage;
  geometry.device_wakes = 1;
  geometry.num_layers = 1;
  const kv::PoolGeometry layer = exchange::PoolGeometryOf(geometry);
  geometry.num_layers = static_cast<uint32_t>(flags.layers.value_or(
      ChooseLayers(static_cast<int64_t>(geometry.num_blocks * layer.block_bytes()))));
  plan->pool = exchange::PoolGeometryOf(geometry);
}

absl::StatusOr<Plan> MakePlan(const Flags& flags) {
  Plan plan;
  TANDEM_ASSIGN_OR_RETURN(plan.contexts, ContextsOf(flags));
  SetGeometry(flags, &plan);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<topology::Topology> machine,
                          topology::Topology::Load());
  TANDEM_ASSIGN_OR_RETURN(
      topology::Placement placement,
      topology::ChoosePlacement(machine->snapshot(), {.threads = flags.threads}));
  plan.cpus = std::move(placement.cpus);
  return plan;
}

class Batch {
 public:
  explicit Batch(const Plan& plan) {
    blocks_.resize(plan.geometry.num_blocks);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = static_cast<int32_t>(i);
    }
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(7));
    size_t first = 0;
    for (const int32_t tokens : plan.contexts) {
      const auto count =
          static_cast<size_t>((tokens + kv::kCpuBlockTokens - 1) / kv::kCpuBlockTokens);
      rows_.push_back({tokens, std::span(blocks_).subspan(first, count)});
      first += count;
    }
    scale_ = 1.0f / std::sqrt(static_cast<float>(plan.geometry.head_dim));
  }

  // All layers of one step.
  absl::Status Step(exchange::DeviceSide& device) {
    TANDEM_RETURN_IF_ERROR(device.BeginStep(++epoch_, rows_, {}, scale_, kStepUs));
    for (int32_t layer = 0; layer < static_cast<int32_t>(device.header().geometry.num_layers);
         ++layer) {
      device.Post(0, layer);
      if (device.WaitDone(0, layer, kStepUs) != exchange::WaitResult::kDone) {
        return absl::UnavailableError("the CPU attention worker was lost");
      }
    }
    return absl::OkStatus();
  }

  // Seconds that `count` steps take.
  absl::StatusOr<double> Steps(int64_t count, exchange::DeviceSide& device) {
    const base::Clock& clock = base::SystemClock();
    const int64_t started_ns = clock.NowNs();
    for (int64_t i = 0; i < count; ++i) {
      TANDEM_RETURN_IF_ERROR(Step(device));
    }
    return static_cast<double>(clock.NowNs() - started_ns) * 1e-9;
  }

 private:
  std::vector<int32_t> blocks_;
  std::vector<exchange::SlotRow> rows_;
  float scale_ = 1.0f;
  uint64_t epoch_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(std::min(line.size(), line.find(':') + 2));
    }
  }
  return "unknown";
}

struct Times {
  std::vector<double> step_s;
  std::vector<double> read_s;
  std::string read_form;
};

// Interleaved: the machine's memory speed changes from second to second.
absl::StatusOr<Times> MeasureRounds(const Flags& flags, const Plan& plan,
                                    exchange::DeviceSide& device) {
  Times times;
  Batch batch(plan);
  const ReadLimit limit(attention::SupportedIsas().front(), plan.cpus, device.pool(),
                        device.header().pool_bytes);
  TANDEM_RETURN_IF_ERROR(CpuWorkerHarness::MoveToLastCpu());
  TANDEM_RETURN_IF_ERROR(batch.Step(device));  // warm-up
  const int64_t layers = plan.geometry.num_layers;
  const int64_t steps = (kLeastLayersPerRound + layers - 1) / layers;
  for (int64_t round = 0; round < flags.rounds; ++round) {
    times.read_s.push_back(limit.Seconds());
    TANDEM_ASSIGN_OR_RETURN(const double seconds, batch.Steps(steps, device));
    times.step_s.push_back(seconds / static_cast<double>(steps));
  }
  times.read_form = limit.form();
  return times;
}

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const attention::Isa isa, attention::ChooseIsa(flags.isa));
  TANDEM_ASSIGN_OR_RETURN(const Plan plan, MakePlan(flags));
  const auto threads = static_cast<int64_t>(plan.cpus.size());
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<CpuWorkerHarness> harness,
      CpuWorkerHarness::Start(
          plan.geometry, {"--isa", flags.isa, "--cpu-attention-threads", absl::StrCat(threads)},
          /*cores_shared=*/threads >= sysconf(_SC_NPROCESSORS_ONLN)));
  exchange::DeviceSide& device = harness->device();
  FillPool(plan.pool, static_cast<int64_t>(plan.geometry.num_blocks), device.pool());
  const uint64_t pool_bytes = device.header().pool_bytes;
  const uint64_t huge_bytes = std::min(pool_bytes, shm::HugePageBytes(device.pool(), pool_bytes));
  TANDEM_ASSIGN_OR_RETURN(const Times times, MeasureRounds(flags, plan, device));
  const double layer_s = Median(times.step_s) / static_cast<double>(plan.geometry.num_layers);
  const double kv_gb_per_s =
      static_cast<double>(plan.pool.token_bytes() * static_cast<size_t>(plan.tokens)) / layer_s *
      1e-9;
  const double read_gb_per_s = static_cast<double>(pool_bytes) / Median(times.read_s) * 1e-9;
  return nlohmann::ordered_json{
      {"q_heads", flags.q_heads},
      {"kv_heads", flags.kv_heads},
      {"head_dim", flags.head_dim},
      {"batch", plan.contexts.size()},
      {"context", static_cast<double>(plan.tokens) / static_cast<double>(plan.contexts.size())},
      {"kv_dtype", flags.kv_dtype},
      {"threads", threads},
      {"layers", plan.geometry.num_layers},
      {"isa", attention::IsaName(isa)},
      {"us_per_layer", layer_s * 1e6},
      {"kv_gb_per_s", kv_gb_per_s},
      {"read_gb_per_s", read_gb_per_s},
      {"ratio", kv_gb_per_s / read_gb_per_s},
      {"rounds", flags.rounds},
      {"read_form", times.read_form},
      {"working_set_bytes", pool_bytes},
      {"llc_bytes", LastLevelCacheBytes()},
      {"huge_page_share", static_cast<double>(huge_bytes) / static_cast<double>(pool_bytes)},
      {"cpu", CpuModel()}};
}

void Print(const nlohmann::ordered_json& line, bool table) {
  if (!table) {
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  for (const auto& [key, value] : line.items()) {
    std::printf("%-18s %s\n", key.c_str(), value.dump().c_str());
  }
}

}  // namespace

int RunBenchAttention(const std::vector<std::string>& args) {
  Flags flags;
  base::ConfigSpec spec("tandem bench attention",
                        "Measures the CPU attention worker against the memory's read limit.");
  Declare(spec, flags);
  if (const std::optional<int> exit_status = spec.ParseMain(args)) {
    return *exit_status;
  }
  if (flags.q_heads % flags.kv_heads != 0 || flags.head_dim % 16 != 0) {
    std::fprintf(stderr,
                 "tandem bench attention: --q-heads must be a multiple of --kv-heads and "
                 "--head-dim of 16\n");
    return kBadUsage;
  }
  const absl::StatusOr<nlohmann::ordered_json> line = Measure(flags);
  if (!line.ok()) {
    std::fprintf(stderr, "tandem bench attention: %s\n",
                 std::string(line.status().message()).c_str());
    return 1;
  }
  Print(*line, flags.table);
  return 0;
}

}  // namespace tandem::cli
