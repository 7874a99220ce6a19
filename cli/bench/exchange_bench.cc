#include "cli/bench/exchange_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "cli/bench/cpu_worker_harness.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int64_t kTimeoutUs = 60'000'000;
constexpr int32_t kLayers = 100;

struct Flags {
  int64_t steps = 50;
  int64_t threads = 1;
  int64_t batch = 1;
  int64_t context = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 16;
  int64_t gap_us = 0;
  bool cores_shared = false;
  bool table = false;
};

struct Result {
  std::vector<double> trips_us;      // sorted
  uint64_t device_kernel_waits = 0;  // sleeps and wakes, all trips together
  uint64_t worker_sleeps = 0;
};

int64_t BlocksPerRow(const Flags& flags) {
  return (flags.context + kv::kCpuBlockTokens - 1) / kv::kCpuBlockTokens;
}

exchange::Geometry TinyGeometry(const Flags& flags) {
  const auto blocks = static_cast<uint64_t>(flags.batch * BlocksPerRow(flags));
  exchange::Geometry geometry{};
  geometry.num_layers = kLayers;
  geometry.num_q_heads = static_cast<uint32_t>(flags.kv_heads);
  geometry.num_kv_heads = static_cast<uint32_t>(flags.kv_heads);
  geometry.head_dim = static_cast<uint32_t>(flags.head_dim);
  geometry.compute_dtype = static_cast<uint32_t>(DType::kFloat32);
  geometry.kv_dtype = static_cast<uint32_t>(DType::kBFloat16);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = static_cast<uint32_t>(flags.batch);
  geometry.num_blocks = blocks;
  geometry.max_table_entries = blocks;
  geometry.extent_bytes = exchange::kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

// What the device computes between two layers.
void Compute(int64_t us) {
  const base::Clock& clock = base::SystemClock();
  const int64_t until_us = clock.NowUs() + us;
  while (clock.NowUs() < until_us) {
  }
}

absl::Status RunStep(exchange::DeviceSide& device, uint64_t epoch,
                     std::span<const exchange::SlotRow> rows, int64_t gap_us,
                     std::vector<double>* trips_us) {
  TANDEM_RETURN_IF_ERROR(device.BeginStep(epoch, rows, {}, 1.0f, kTimeoutUs));
  const base::Clock& clock = base::SystemClock();
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    Compute(gap_us);
    const int64_t started_ns = clock.NowNs();
    device.Post(0, layer);
    if (device.WaitDone(0, layer, kTimeoutUs) != exchange::WaitResult::kDone) {
      return absl::UnavailableError("the CPU attention worker was lost");
    }
    trips_us->push_back(static_cast<double>(clock.NowNs() - started_ns) * 1e-3);
  }
  return absl::OkStatus();
}

absl::StatusOr<Result> RoundTrips(const Flags& flags) {
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<CpuWorkerHarness> harness,
      CpuWorkerHarness::Start(TinyGeometry(flags),
                              {"--cpu-attention-threads", std::to_string(flags.threads)},
                              flags.cores_shared));
  TANDEM_RETURN_IF_ERROR(CpuWorkerHarness::MoveToLastCpu());
  exchange::DeviceSide& device = harness->device();
  std::vector<int32_t> table(device.header().geometry.num_blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<exchange::SlotRow> rows;
  for (int64_t i = 0; i < flags.batch; ++i) {
    const auto blocks = static_cast<size_t>(BlocksPerRow(flags));
    rows.push_back({static_cast<int32_t>(flags.context),
                    std::span(table).subspan(static_cast<size_t>(i) * blocks, blocks)});
  }
  Result result;
  TANDEM_RETURN_IF_ERROR(RunStep(device, 1, rows, flags.gap_us, &result.trips_us));  // warms up
  result.trips_us.clear();
  const uint64_t waits = exchange::KernelWaitCalls();
  const uint64_t sleeps = harness->AttentionThreadSleeps();
  for (int64_t step = 0; step < flags.steps; ++step) {
    const auto epoch = static_cast<uint64_t>(step) + 2;
    TANDEM_RETURN_IF_ERROR(RunStep(device, epoch, rows, flags.gap_us, &result.trips_us));
  }
  result.device_kernel_waits = exchange::KernelWaitCalls() - waits;
  result.worker_sleeps = harness->AttentionThreadSleeps() - sleeps;
  std::sort(result.trips_us.begin(), result.trips_us.end());
  return result;
}

// One core of the machine is the device's.
int64_t DefaultThreads() { return std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN) - 1); }

void Print(const Flags& flags, const Result& result) {
  const std::vector<double>& trips_us = result.trips_us;
  const nlohmann::ordered_json line = {{"round_trips", trips_us.size()},
                                       {"threads", flags.threads},
                                       {"batch", flags.batch},
                                       {"context", flags.context},
                                       {"gap_us", flags.gap_us},
                                       {"cores_shared", flags.cores_shared},
                                       {"p50_us", trips_us[trips_us.size() / 2]},
                                       {"p99_us", trips_us[trips_us.size() * 99 / 100]},
                                       {"device_kernel_waits", result.device_kernel_waits},
                                       {"worker_sleeps", result.worker_sleeps}};
  if (!flags.table) {
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  for (const auto& [name, value] : line.items()) {
    std::printf("%-20s %12s\n", name.c_str(), value.dump().c_str());
  }
}

}  // namespace

int RunBenchExchange(const std::vector<std::string>& args) {
  Flags flags;
  flags.threads = DefaultThreads();
  flags.cores_shared = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  base::ConfigSpec spec("tandem bench exchange",
                        "Measures the round trip of one layer between two processes: from the "
                        "device's doorbell to the worker's answer.");
  spec.Int("steps", &flags.steps, 1, 100000, "steps of 100 layers");
  spec.Int("threads", &flags.threads, 1, 4096,
           "threads of the worker (default: all cores but one)");
  spec.Int("batch", &flags.batch, 1, 4096, "sequences");
  spec.Int("context", &flags.context, 1, 1 << 20,
           "tokens of each sequence; enough of them make all threads take part");
  spec.Int("kv-heads", &flags.kv_heads, 1, 1024, "KV heads, and query heads");
  spec.Int("head-dim", &flags.head_dim, 16, 256, "of each head; a multiple of 16");
  spec.Int("gap-us", &flags.gap_us, 0, 1'000'000,
           "time that the device computes before each layer");
  spec.Bool("cores-shared", &flags.cores_shared, "both sides' waits leave the core at once");
  spec.Bool("table", &flags.table, "a table instead of JSON");
  if (const std::optional<int> exit_status = spec.ParseMain(args)) {
    return *exit_status;
  }
  const absl::StatusOr<Result> result = RoundTrips(flags);
  if (!result.ok()) {
    std::fprintf(stderr, "tandem bench exchange: %s\n",
                 std::string(result.status().message()).c_str());
    return 1;
  }
  Print(flags, *result);
  return 0;
}

}  // namespace tandem::cli
