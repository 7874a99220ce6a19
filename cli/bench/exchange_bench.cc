#include "cli/bench/exchange_bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

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
  bool cores_shared = false;
  bool table = false;
};

exchange::Geometry TinyGeometry() {
  exchange::Geometry geometry{};
  geometry.num_layers = kLayers;
  geometry.num_q_heads = 1;
  geometry.num_kv_heads = 1;
  geometry.head_dim = 16;
  geometry.compute_dtype = static_cast<uint32_t>(DType::kFloat32);
  geometry.kv_dtype = static_cast<uint32_t>(DType::kFloat32);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = 1;
  geometry.num_blocks = 1;
  geometry.max_table_entries = 1;
  geometry.extent_bytes = exchange::kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

absl::StatusOr<std::vector<double>> RoundTrips(const Flags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<CpuWorkerHarness> harness,
                          CpuWorkerHarness::Start(TinyGeometry(), {"--cpu-attention-threads", "1"},
                                                  flags.cores_shared));
  exchange::DeviceSide& device = harness->device();
  const std::vector<int32_t> table = {0};
  const std::vector<exchange::SlotRow> rows = {{1, table}};
  const base::Clock& clock = base::SystemClock();
  std::vector<double> trips_us;
  for (int64_t step = 0; step <= flags.steps; ++step) {
    TANDEM_RETURN_IF_ERROR(
        device.BeginStep(static_cast<uint64_t>(step) + 1, rows, {}, 1.0f, kTimeoutUs));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const int64_t started_us = clock.NowUs();
      device.Post(0, layer);
      if (device.WaitDone(0, layer, kTimeoutUs) != exchange::WaitResult::kDone) {
        return absl::UnavailableError("the CPU attention worker was lost");
      }
      const int64_t trip_us = clock.NowUs() - started_us;
      if (step > 0) {  // the first step warms up
        trips_us.push_back(static_cast<double>(trip_us));
      }
    }
  }
  std::sort(trips_us.begin(), trips_us.end());
  return trips_us;
}

}  // namespace

int RunBenchExchange(const std::vector<std::string>& args) {
  Flags flags;
  flags.cores_shared = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  base::ConfigSpec spec("tandem bench exchange",
                        "Measures the round trip of one layer between two processes.");
  spec.Int("steps", &flags.steps, 1, 100000, "steps of 100 layers");
  spec.Bool("cores-shared", &flags.cores_shared, "the worker's waits park at once");
  spec.Bool("table", &flags.table, "a table instead of JSON");
  if (const std::optional<int> exit_status = spec.ParseMain(args)) {
    return *exit_status;
  }
  const absl::StatusOr<std::vector<double>> trips_us = RoundTrips(flags);
  if (!trips_us.ok()) {
    std::fprintf(stderr, "tandem bench exchange: %s\n",
                 std::string(trips_us.status().message()).c_str());
    return 1;
  }
  const double p50_us = (*trips_us)[trips_us->size() / 2];
  const double p99_us = (*trips_us)[trips_us->size() * 99 / 100];
  if (flags.table) {
    std::printf("%-8s %10.2f\n%-8s %10.2f\n", "p50_us", p50_us, "p99_us", p99_us);
    return 0;
  }
  const nlohmann::ordered_json line = {{"round_trips", trips_us->size()},
                                       {"cores_shared", flags.cores_shared},
                                       {"p50_us", p50_us},
                                       {"p99_us", p99_us}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace tandem::cli
