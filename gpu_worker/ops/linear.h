#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/ops/host/matmul.h"
#include "gpu_worker/ops/op.h"

namespace tandem::gpu_worker::ops {

// Weights [out_features, in_features] in the compute dtype and the device's own order.
struct PackedLinear {
  host::PackedFormat format;
  std::unique_ptr<device::Buffer> weights;
  std::vector<float> bias;                      // [out_features] or empty
  std::unique_ptr<device::Buffer> device_bias;  // the same, of a device with memory of its own
  int64_t out_features() const { return format.n; }
  int64_t in_features() const { return format.k; }
};

// Writes rows [first, first + count) of a weight matrix to `out` [count, in_features]. Called by
// several threads at once.
using RowReader = std::function<void(int64_t first, int64_t count, float* out)>;

struct LinearSource {
  int64_t out_features = 0;
  int64_t in_features = 0;
  RowReader read;
  std::vector<float> bias;       // [out_features] or empty
  const char* what = "weights";  // for errors
};

// Allocates at once and queues the packing; `read` must work until the stream is past it.
absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(OpContext& context, LinearSource source);

// Rows in the compute dtype, in their own order: out [rows, cols]. Queued like PackLinear.
struct ConvertTableArgs {
  RowReader read;
  int64_t rows = 0;
  int64_t cols = 0;
  std::byte* out = nullptr;
};
void ConvertTable(OpContext& context, ConvertTableArgs args);

// Where the calling thread and `others` like it load at the same time: each takes its share of the
// cores from now on.
void ShareCores(int32_t others);

// After the last of them, once the stream is past it: gives back what they needed.
void EndLoading(OpContext& context);

// Linear works on whole buckets of rows: `in` and `out` have room for LinearRows(rows) rows, and
// what `out` holds past `rows` is lost.
int64_t LinearRows(int64_t rows);

struct LinearArgs {
  const PackedLinear* weights = nullptr;
  const std::byte* in = nullptr;  // [rows, in_features] compute dtype
  std::byte* out = nullptr;       // [rows, out_features] of out_dtype
  int64_t rows = 0;
  DType out_dtype = DType::kFloat32;  // float32 or the compute dtype
  bool accumulate = false;            // out += (float32 only)
};
void Linear(OpContext& context, const LinearArgs& args);

// out [rows, in_features] float32 = rows `ids` of the weights: a tied embedding needs no second
// table. Ids are in range.
void GatherPackedRows(OpContext& context, const PackedLinear& weights, std::span<const int32_t> ids,
                      float* out);

}  // namespace tandem::gpu_worker::ops
