#include "cli/bench/attention_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "cli/bench/cpu_worker_harness.h"
#include "cli/bench/read_limit.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int kBadUsage = 2;
constexpr int64_t kStepUs = 600'000'000;
constexpr int64_t kCacheTimes = 8;  // working set in units of the last-level cache

struct Flags {
  int64_t q_heads = 32, kv_heads = 8, head_dim = 128, batch = 16, context = 1024;
  std::optional<int64_t> layers;
  std::optional<int64_t> threads;
  std::string kv_dtype = "bfloat16";
  std::string isa = "auto";
  int64_t rounds = 9;
  bool table = false;
};

void Declare(base::ConfigSpec& spec, Flags& flags) {
  spec.Int("q-heads", &flags.q_heads, 1, 1024, "query heads");
  spec.Int("kv-heads", &flags.kv_heads, 1, 1024, "KV heads");
  spec.Int("head-dim", &flags.head_dim, 16, 256, "dimensions of a head");
  spec.Int("batch", &flags.batch, 1, 65536, "sequences");
  spec.Int("context", &flags.context, 1, 1 << 24, "tokens of each sequence");
  spec.Choice("kv-dtype", &flags.kv_dtype, {"float32", "bfloat16"}, "type of the KV cache");
  spec.OptionalInt("threads", &flags.threads, 1, 4096, "threads (default: one per core)");
  spec.OptionalInt("layers", &flags.layers, 1, 1024,
                   "layers (default: so many that K and V are 8 times the last-level cache)");
  spec.Choice("isa", &flags.isa, {"auto", "scalar", "avx2", "avx512", "avx512_bf16"},
              "instruction set");
  spec.Int("rounds", &flags.rounds, 1, 1000, "rounds, of which the median counts");
  spec.Bool("table", &flags.table, "a table instead of JSON");
}

uint64_t LayerBytes(const Flags& flags) {
  const uint64_t element = flags.kv_dtype == "float32" ? 4 : 2;
  return static_cast<uint64_t>(flags.batch * flags.context * flags.kv_heads * flags.head_dim) * 2 *
         element;
}

int64_t ChooseLayers(const Flags& flags) {
  const int64_t cache = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 16 << 20);
  const auto bytes = static_cast<int64_t>(LayerBytes(flags));
  return std::clamp<int64_t>((cache * kCacheTimes + bytes - 1) / bytes, 2, 256);
}

exchange::Geometry MakeGeometry(const Flags& flags, int64_t layers) {
  const int64_t blocks_per_row = (flags.context + kv::kCpuBlockTokens - 1) / kv::kCpuBlockTokens;
  const DType dtype = flags.kv_dtype == "float32" ? DType::kFloat32 : DType::kBFloat16;
  exchange::Geometry geometry{};
  geometry.num_layers = static_cast<uint32_t>(layers);
  geometry.num_q_heads = static_cast<uint32_t>(flags.q_heads);
  geometry.num_kv_heads = static_cast<uint32_t>(flags.kv_heads);
  geometry.head_dim = static_cast<uint32_t>(flags.head_dim);
  geometry.compute_dtype = static_cast<uint32_t>(dtype);
  geometry.kv_dtype = static_cast<uint32_t>(dtype);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = static_cast<uint32_t>(flags.batch);
  geometry.num_blocks = static_cast<uint64_t>(flags.batch * blocks_per_row);
  geometry.max_table_entries = geometry.num_blocks;
  geometry.extent_bytes = 16 * exchange::kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

// Finite values of magnitude below 2 in either type.
void Fill(std::byte* data, uint64_t bytes, bool float32) {
  std::minstd_rand random(1);
  auto* words = reinterpret_cast<uint32_t*>(data);
  const uint32_t keep = float32 ? 0x80ffffffu : 0x80ff80ffu;
  const uint32_t exponent = float32 ? 0x3f000000u : 0x3f003f00u;
  for (uint64_t i = 0; i < bytes / 4; ++i) {
    words[i] = (static_cast<uint32_t>(random() * 3u) & keep & ~exponent) | exponent;
  }
}

class Batch {
 public:
  Batch(const Flags& flags, const exchange::Geometry& geometry) {
    blocks_.resize(geometry.num_blocks);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = static_cast<int32_t>(i);
    }
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(7));
    const size_t per_row = blocks_.size() / static_cast<size_t>(flags.batch);
    for (size_t row = 0; row < static_cast<size_t>(flags.batch); ++row) {
      rows_.push_back({static_cast<int32_t>(flags.context),
                       std::span(blocks_).subspan(row * per_row, per_row)});
    }
    scale_ = 1.0f / std::sqrt(static_cast<float>(flags.head_dim));
  }

  // Seconds of all layers of one step.
  absl::StatusOr<double> Step(exchange::DeviceSide& device) {
    TANDEM_RETURN_IF_ERROR(device.BeginStep(++epoch_, rows_, {}, scale_, kStepUs));
    const base::Clock& clock = base::SystemClock();
    const int64_t started_us = clock.NowUs();
    for (int32_t layer = 0; layer < static_cast<int32_t>(device.header().geometry.num_layers);
         ++layer) {
      device.Post(0, layer);
      if (device.WaitDone(0, layer, kStepUs) != exchange::WaitResult::kDone) {
        return absl::UnavailableError("the CPU attention worker was lost");
      }
    }
    return static_cast<double>(clock.NowUs() - started_us) * 1e-6;
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

absl::StatusOr<nlohmann::ordered_json> Measure(const Flags& flags) {
  const int64_t layers = flags.layers.value_or(ChooseLayers(flags));
  const exchange::Geometry geometry = MakeGeometry(flags, layers);
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  const int64_t threads = flags.threads.value_or(cores);
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<CpuWorkerHarness> harness,
      CpuWorkerHarness::Start(
          geometry, {"--isa", flags.isa, "--cpu-attention-threads", absl::StrCat(threads)},
          /*cores_shared=*/threads >= cores));
  exchange::DeviceSide& device = harness->device();
  const uint64_t pool_bytes = device.header().pool_bytes;
  Fill(device.pool(), pool_bytes, flags.kv_dtype == "float32");
  Batch batch(flags, geometry);
  TANDEM_RETURN_IF_ERROR(batch.Step(device).status());  // warm-up
  std::vector<double> step_s;
  std::vector<double> read_s;
  // Interleaved: the machine's memory speed changes from second to second.
  for (int64_t round = 0; round < flags.rounds; ++round) {
    read_s.push_back(StreamingReadSeconds(device.pool(), pool_bytes, static_cast<int>(threads)));
    TANDEM_ASSIGN_OR_RETURN(const double seconds, batch.Step(device));
    step_s.push_back(seconds);
  }
  const double layer_s = Median(step_s) / static_cast<double>(layers);
  const double kv_gb_per_s = static_cast<double>(LayerBytes(flags)) / layer_s * 1e-9;
  const double read_gb_per_s = static_cast<double>(pool_bytes) / Median(read_s) * 1e-9;
  return nlohmann::ordered_json{{"q_heads", flags.q_heads},
                                {"kv_heads", flags.kv_heads},
                                {"head_dim", flags.head_dim},
                                {"batch", flags.batch},
                                {"context", flags.context},
                                {"kv_dtype", flags.kv_dtype},
                                {"threads", threads},
                                {"layers", layers},
                                {"isa", flags.isa},
                                {"us_per_layer", layer_s * 1e6},
                                {"kv_gb_per_s", kv_gb_per_s},
                                {"read_gb_per_s", read_gb_per_s},
                                {"ratio", kv_gb_per_s / read_gb_per_s}};
}

void Print(const nlohmann::ordered_json& line, bool table) {
  if (!table) {
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  for (const auto& [key, value] : line.items()) {
    std::printf("%-14s %s\n", key.c_str(), value.dump().c_str());
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
