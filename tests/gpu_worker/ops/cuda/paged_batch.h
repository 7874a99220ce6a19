#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/kv_layout/kv_layout.h"
#include "tests/gpu_worker/ops/cuda/shim_launcher.h"

// Paged pools and runs, as the host and as kernels see them.
namespace tandem::gpu_worker::ops::cuda {

inline DType HostType(ElementType type) { return static_cast<DType>(type); }

// A pool full of NaN whose blocks are handed out in random order.
class TestPool {
 public:
  TestPool(std::mt19937& random, const kv::PoolGeometry& geometry, int32_t num_blocks)
      : geometry_(geometry), memory_(geometry.block_bytes() * static_cast<size_t>(num_blocks)) {
    free_.resize(static_cast<size_t>(num_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random);
  }

  std::vector<int32_t> Take(int64_t tokens) {
    std::vector<int32_t> table;
    for (int64_t at = 0; at < tokens; at += geometry_.block_tokens) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }
  const kv::PoolGeometry& geometry() const { return geometry_; }
  Guarded& memory() { return memory_; }
  std::byte* Layer(int32_t block, int32_t layer) {
    return memory_.data() + geometry_.LayerOffset(block, layer);
  }
  PoolParams Params(int32_t layer) {
    PoolParams params;
    params.data = reinterpret_cast<char*>(Layer(0, layer));
    params.block_bytes = static_cast<int64_t>(geometry_.block_bytes());
    params.head_bytes = static_cast<int64_t>(geometry_.head_bytes());
    params.k_tile_bytes = static_cast<int64_t>(geometry_.k_tile_bytes());
    params.scales_offset = static_cast<int64_t>(geometry_.scales_offset());
    params.num_kv_heads = geometry_.num_kv_heads;
    params.head_dim = geometry_.head_dim;
    params.block_tokens = geometry_.block_tokens;
    params.dtype = static_cast<ElementType>(geometry_.dtype);
    return params;
  }

 private:
  kv::PoolGeometry geometry_;
  Guarded memory_;
  std::vector<int32_t> free_;
};

// Runs of a batch with their tables in "device" memory.
class TestRuns {
 public:
  void Add(RunParams run, const std::vector<int32_t>& table) {
    run.table_begin = static_cast<int32_t>(tables_.size());
    run.rows_before = params_.total_rows;
    tables_.insert(tables_.end(), table.begin(), table.end());
    runs_.push_back(run);
    params_.num_runs = static_cast<int32_t>(runs_.size());
    params_.total_rows += run.num_rows;
    params_.max_rows = std::max(params_.max_rows, run.num_rows);
    params_.max_context = std::max(params_.max_context, run.start_position + run.num_rows);
  }
  // Runs without rows, as graphs have them.
  void AddEmpty(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      RunParams run;
      run.rows_before = params_.total_rows;
      runs_.push_back(run);
    }
    empty_ += count;
    params_.num_runs += count;
  }
  RunsParams Params() {
    RunsParams params = params_;
    params.total_rows += empty_;
    params.runs = runs_.data();
    params.tables = tables_.data();
    return params;
  }

 private:
  RunsParams params_;
  int32_t empty_ = 0;
  std::vector<RunParams> runs_;
  std::vector<int32_t> tables_;
};

}  // namespace tandem::gpu_worker::ops::cuda
