#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu_worker/ops/attention_host.h"
#include "gpu_worker/ops/host/amx_attention.h"
#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Query vectors (rows times the heads of a group) that share one pass over the keys: enough to pay
// for unpacking K and V, few enough that queries, sums and a tile of keys stay in the L2 cache.
constexpr int32_t kQueryTile = 64;
constexpr int32_t kMaxRowTile = 32;
constexpr int32_t kQueryStep = 16;  // the kernels', 8 and 16

int32_t RoundUp(int32_t value, int32_t step) { return (value + step - 1) / step * step; }

// Some rows of one run for one KV head.
struct Task {
  const RowRun* run;
  int32_t kv_head;
  int32_t first;  // row within the run
  int32_t count;
};

// Memory of one thread, laid out by the model's shape.
struct Scratch {
  float* q;
  float* acc;
  float* k;
  float* v;
  float* scores;
  float* max;
  float* sum;
  int32_t* visible;

  static size_t Floats(int32_t queries, int32_t head_dim) {
    const auto q = static_cast<size_t>(queries);
    const auto d = static_cast<size_t>(head_dim);
    return 2 * q * d + 2 * kMaxKeyTile * d + q * kMaxKeyTile + 3 * q;
  }

  Scratch(float* memory, int32_t queries, int32_t head_dim) {
    const int64_t matrix = int64_t{queries} * head_dim;
    const int64_t tile = int64_t{kMaxKeyTile} * head_dim;
    q = memory;
    acc = q + matrix;
    k = acc + matrix;
    v = k + tile;
    scores = v + tile;
    max = scores + int64_t{queries} * kMaxKeyTile;
    sum = max + queries;
    visible = reinterpret_cast<int32_t*>(sum + queries);
  }
};

class Worker {
 public:
  Worker(const Workspace& workspace, const AttentionArgs& args, DType out_dtype)
      : kernels_(workspace.kernels()),
        args_(args),
        geometry_(*args.pool.geometry),
        group_(args.qkv.num_q_heads / args.qkv.num_kv_heads),
        out_dtype_(out_dtype),
        amx_(workspace.isa() == attention::Isa::kAmxBf16 && out_dtype == DType::kBFloat16 &&
             geometry_.dtype == DType::kBFloat16 && geometry_.head_dim % 32 == 0) {}

  void Run(const Task& task, const Scratch& scratch) const {
    const int32_t queries = task.count * group_;
    const int32_t padded = RoundUp(queries, kQueryStep);
    LoadQueries(task, queries, padded, scratch);
    const int32_t first_position = task.run->start_position + task.first;
    const int32_t keys = first_position + task.count;  // the last row sees this many
    for (int32_t first_key = 0; first_key < keys; first_key += kMaxKeyTile) {
      const int32_t num_keys = std::min(kMaxKeyTile, keys - first_key);
      for (int32_t i = 0; i < padded; ++i) {
        const int32_t seen = i < queries ? first_position + i / group_ + 1 - first_key : 0;
        scratch.visible[i] = std::clamp(seen, 0, num_keys);
      }
      if (amx_) {
        AttendByAmx(task, first_key, num_keys, padded, scratch);
      } else {
        Attend(task, first_key, num_keys, padded, scratch);
      }
    }
    StoreOutputs(task, queries, scratch);
  }

 private:
  void Attend(const Task& task, int32_t first_key, int32_t num_keys, int32_t queries,
              const Scratch& scratch) const {
    const float* sub_tiles[kMaxKeyTile / kKeySubTile];
    LoadKeys(task, first_key, num_keys, scratch, sub_tiles);
    AttendTile tile;
    tile.num_keys = num_keys;
    tile.q = scratch.q;
    tile.num_queries = queries;
    tile.head_dim = geometry_.head_dim;
    tile.k = sub_tiles;
    tile.v = scratch.v;
    tile.visible = scratch.visible;
    tile.scores = scratch.scores;
    tile.max = scratch.max;
    tile.sum = scratch.sum;
    tile.acc = scratch.acc;
    kernels_.attend_tile(tile);
  }

  // Reads K and V where they lie; memory for float keys and values holds weights and a last V.
  void AttendByAmx(const Task& task, int32_t first_key, int32_t num_keys, int32_t queries,
                   const Scratch& scratch) const {
    AmxAttendTile tile;
    tile.q = reinterpret_cast<const uint16_t*>(scratch.q);
    tile.num_queries = queries;
    tile.head_dim = geometry_.head_dim;
    tile.num_keys = num_keys;
    for (int32_t offset = 0; offset < num_keys; offset += kKeySubTile) {
      const int32_t sub_tile = offset / kKeySubTile;
      const std::byte* k_tile = TileOf(task, first_key + offset);
      const int32_t token = (first_key + offset) % geometry_.block_tokens;
      tile.k[sub_tile] = reinterpret_cast<const uint16_t*>(k_tile) + geometry_.KElement(token, 0);
      const auto* v_tile = reinterpret_cast<const uint16_t*>(k_tile + geometry_.k_tile_bytes());
      const int32_t valid = std::min(kKeySubTile, num_keys - offset);
      auto* last = reinterpret_cast<uint16_t*>(scratch.v);
      for (int32_t column = 0; column < geometry_.head_dim; column += kAmxChunkColumns) {
        const uint16_t* from = v_tile + geometry_.VElement(token, column);
        const int32_t columns = std::min(kAmxChunkColumns, geometry_.head_dim - column);
        if (valid < kKeySubTile) {
          CopyValid(from, valid, columns, last);
          from = last;
          last += kKeySubTile * columns;
        }
        tile.v[sub_tile][column / kAmxChunkColumns] = from;
      }
    }
    tile.visible = scratch.visible;
    tile.scores = scratch.scores;
    tile.weights = reinterpret_cast<uint16_t*>(scratch.k);
    tile.max = scratch.max;
    tile.sum = scratch.sum;
    tile.acc = scratch.acc;
    AmxAttend(tile);
  }

  // Of a sub-tile of V [8, columns, 2] the first `valid` tokens; the others, which may hold
  // anything, become zero.
  static void CopyValid(const uint16_t* from, int32_t valid, int32_t columns, uint16_t* to) {
    for (int32_t token = 0; token < kKeySubTile; ++token) {
      const int32_t first = token / 2 * 2 * columns + token % 2;
      for (int32_t column = 0; column < columns; ++column) {
        to[first + 2 * column] = token < valid ? from[first + 2 * column] : uint16_t{0};
      }
    }
  }

  // The K tile of the block that holds position `position`.
  const std::byte* TileOf(const Task& task, int32_t position) const {
    const int32_t block =
        task.run->block_table[static_cast<size_t>(position / geometry_.block_tokens)];
    return args_.pool.pool + geometry_.HeadOffset(block, args_.pool.layer, task.kv_head);
  }

  void LoadQueries(const Task& task, int32_t queries, int32_t padded,
                   const Scratch& scratch) const {
    const int32_t d = geometry_.head_dim;
    const size_t matrix = static_cast<size_t>(padded) * static_cast<size_t>(d) * sizeof(float);
    std::memset(scratch.acc, 0, matrix);
    for (int32_t i = 0; i < padded; ++i) {
      float* to = amx_ ? scratch.scores : scratch.q + int64_t{i} * d;
      if (i < queries) {
        const int32_t row = task.run->first_row + task.first + i / group_;
        const int32_t head = task.kv_head * group_ + i % group_;
        kernels_.scale(args_.qkv.q(row) + int64_t{head} * d, args_.scale, d, to);
      } else {
        std::memset(to, 0, static_cast<size_t>(d) * sizeof(float));
      }
      if (amx_) {
        kernels_.float_to_bf16(to, d, reinterpret_cast<uint16_t*>(scratch.q) + int64_t{i} * d);
      }
      scratch.max[i] = -3e38f;
      scratch.sum[i] = 0.0f;
    }
  }

  // K sub-tiles as [head_dim, 16] and V rows as [tokens, head_dim], float32; V past the last key is
  // zero, since the block may hold anything there.
  void LoadKeys(const Task& task, int32_t first_key, int32_t num_keys, const Scratch& scratch,
                const float** sub_tiles) const {
    const int32_t d = geometry_.head_dim;
    for (int32_t offset = 0; offset < num_keys; offset += kKeySubTile) {
      const std::byte* k_tile = TileOf(task, first_key + offset);
      const int32_t token = (first_key + offset) % geometry_.block_tokens;
      const std::byte* v_tile = k_tile + geometry_.k_tile_bytes();
      float* k_out = scratch.k + int64_t{offset} * d;
      float* v_out = scratch.v + int64_t{offset} * d;
      if (geometry_.dtype == DType::kFloat32) {
        sub_tiles[offset / kKeySubTile] =
            reinterpret_cast<const float*>(k_tile) + geometry_.KElement(token, 0);
        std::memcpy(v_out, reinterpret_cast<const float*>(v_tile) + geometry_.VElement(token, 0),
                    static_cast<size_t>(kKeySubTile * d) * sizeof(float));
      } else {
        UnpackBf16(k_tile, v_tile, token, k_out, v_out);
        sub_tiles[offset / kKeySubTile] = k_out;
      }
    }
    const int32_t padded = RoundUp(num_keys, kKeySubTile);
    std::memset(scratch.v + int64_t{num_keys} * d, 0,
                static_cast<size_t>((padded - num_keys) * d) * sizeof(float));
  }

  void UnpackBf16(const std::byte* k_tile, const std::byte* v_tile, int32_t token, float* k_out,
                  float* v_out) const {
    constexpr int32_t kChunkColumns = 64;  // of V in the paged layout
    const int32_t d = geometry_.head_dim;
    kernels_.unpack_k(reinterpret_cast<const uint16_t*>(k_tile) + geometry_.KElement(token, 0), d,
                      k_out);
    for (int32_t column = 0; column < d; column += kChunkColumns) {
      kernels_.unpack_v(
          reinterpret_cast<const uint16_t*>(v_tile) + geometry_.VElement(token, column),
          kKeySubTile / 2, std::min(kChunkColumns, d - column), d, v_out + column);
    }
  }

  void StoreOutputs(const Task& task, int32_t queries, const Scratch& scratch) const {
    const int32_t d = geometry_.head_dim;
    for (int32_t i = 0; i < queries; ++i) {
      float* acc = scratch.acc + int64_t{i} * d;
      kernels_.scale(acc, 1.0f / scratch.sum[i], d, acc);
      const int64_t row = task.run->first_row + task.first + i / group_;
      const int64_t head = task.kv_head * group_ + i % group_;
      const int64_t at = (row * args_.qkv.num_q_heads + head) * d;
      if (out_dtype_ == DType::kFloat32) {
        std::memcpy(reinterpret_cast<float*>(args_.out) + at, acc,
                    static_cast<size_t>(d) * sizeof(float));
      } else {
        kernels_.float_to_bf16(acc, d, reinterpret_cast<uint16_t*>(args_.out) + at);
      }
    }
  }

  const Kernels& kernels_;
  const AttentionArgs& args_;
  const kv::PoolGeometry& geometry_;
  const int32_t group_;
  const DType out_dtype_;
  const bool amx_;
};

}  // namespace

absl::Status PrefillAttention(OpContext& context, const AttentionArgs& args,
                              std::span<const RowRun> runs) {
  Workspace& workspace = context.workspace();
  const int32_t group = args.qkv.num_q_heads / args.qkv.num_kv_heads;
  const int32_t row_tile = std::clamp(kQueryTile / group, 1, kMaxRowTile);
  std::vector<Task> tasks;
  for (const RowRun& run : runs) {
    for (int32_t first = 0; first < run.num_rows; first += row_tile) {
      for (int32_t head = 0; head < args.qkv.num_kv_heads; ++head) {
        tasks.push_back({&run, head, first, std::min(row_tile, run.num_rows - first)});
      }
    }
  }
  // Longest first, so that the threads end together.
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    return a.run->start_position + a.first > b.run->start_position + b.first;
  });
  const int32_t queries = RoundUp(row_tile * group, kQueryStep);
  workspace.PrepareThreads(omp_get_max_threads(), Scratch::Floats(queries, args.qkv.head_dim));
  const Worker worker(workspace, args, context.compute_dtype());
  const auto count = static_cast<int64_t>(tasks.size());
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    const Scratch scratch(workspace.ThreadScratch(omp_get_thread_num()), queries,
                          args.qkv.head_dim);
    worker.Run(tasks[static_cast<size_t>(i)], scratch);
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
