#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "gpu_worker/scheduler/scheduler.h"

namespace tandem::gpu_worker {
namespace {

MeasuredRates Rates(double cpu_bytes_per_us) {
  MeasuredRates rates;
  rates.num_layers = 32;
  rates.weight_bytes = 1.3e10;
  rates.memory_bytes_per_us = 3e5;
  rates.flops_per_us = 6e7;
  rates.flops_per_token = 1.3e10;
  rates.attention_bytes_per_us = 2.4e5;
  rates.cpu_attention_bytes_per_us = cpu_bytes_per_us;
  rates.copy_bytes_per_us = 1.2e4;
  rates.launch_us = 5;
  rates.kv_bytes_per_token_layer = 16384;
  rates.cpu_kv_bytes_per_token_layer = 16384;
  return rates;
}

struct Load {
  std::deque<SequenceView> views;
  std::vector<const SequenceView*> resident;
  std::vector<const SequenceView*> waiting;
  SchedulerState state;

  void Add(Tier tier, int64_t tokens) {
    SequenceView view;
    view.id = views.size() + 1;
    view.arrival = view.id;
    view.tier = tier;
    view.total_tokens = tokens;
    if (tier != Tier::kNone) {
      PoolState& pool = tier == Tier::kGpu ? state.gpu : state.cpu;
      view.cached_tokens = tokens - 1;
      view.prefill_end = tokens - 1;
      view.blocks = pool.BlocksFor(tokens);
      view.last_progress_step = 1000 - view.id % 30;
      pool.free_blocks -= view.blocks;
    }
    views.push_back(view);
    (tier == Tier::kNone ? waiting : resident).push_back(&views.back());
  }
};

// 256 sequences run on the device, 512 live on the CPU, state.range(0) wait.
void BM_Plan(benchmark::State& bench) {
  Load load;
  load.state.gpu = {20'000, 20'000, 20'000, 16};
  load.state.cpu = {20'000, 20'000, 20'000, 128};
  load.state.cpu_up = true;
  load.state.step_index = 1000;
  for (int i = 0; i < 256; ++i) {
    load.Add(Tier::kGpu, 500 + i);
  }
  for (int i = 0; i < 512; ++i) {
    load.Add(Tier::kCpu, 600 + i);
  }
  for (int i = 0; i < bench.range(0); ++i) {
    load.Add(Tier::kNone, 300 + i % 200);
  }
  // In no order, as the engine's table gives them.
  std::shuffle(load.resident.begin(), load.resident.end(), std::mt19937(1));
  load.state.resident = load.resident;
  load.state.waiting = load.waiting;
  SchedulerConfig config;
  config.max_num_seqs = 1024;
  config.max_cpu_rows_per_slot = 512;
  config.max_cpu_table_entries_per_slot = 1 << 20;
  config.residency_us = bench.range(1) != 0 ? 0 : 1'000'000'000'000;
  const Scheduler scheduler(config, MakeRooflineCostModel(Rates(1e5)));
  std::vector<double> times_us;
  for (auto _ : bench) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(scheduler.Plan(load.state, 1'000'000));
    const auto end = std::chrono::steady_clock::now();
    times_us.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::sort(times_us.begin(), times_us.end());
  bench.counters["p50_us"] = times_us[times_us.size() / 2];
  bench.counters["p99_us"] = times_us[times_us.size() * 99 / 100];
}
BENCHMARK(BM_Plan)
    ->ArgNames({"waiting", "swap_in"})
    ->Args({0, 0})
    ->Args({1'000, 0})
    ->Args({1'000, 1})
    ->Args({10'000, 0})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::gpu_worker
