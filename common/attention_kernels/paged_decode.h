#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout/kv_layout.h"

namespace tandem::attention {

// What a kernel asks for while it reads: what its table says, nothing, the same line of the tile
// that comes next, or the line some kilobytes ahead. All but the first are for measurements;
// kernels without prefetches ignore it.
enum class Prefetch { kTable, kOff, kNextTile, kAhead };

// One query row of one sequence against a run of its cached tokens, for some KV heads.
struct SegmentArgs {
  const std::byte* pool = nullptr;       // of `geometry`
  const int32_t* block_table = nullptr;  // whole table of the sequence
  int32_t layer = 0;
  int64_t first_token = 0;  // multiple of 16
  int64_t num_tokens = 0;   // >= 1; the run may end anywhere in a block
  int32_t kv_head_begin = 0;
  int32_t kv_head_end = 0;
  int32_t group_size = 1;           // query heads per KV head
  const void* q = nullptr;          // [num_q_heads, head_dim] in q_dtype, the row's whole query
  DType q_dtype = DType::kFloat32;  // float32, bfloat16 or float16
  Prefetch prefetch = Prefetch::kTable;
  float scale = 1.0f;  // of the scores, usually 1 / sqrt(head_dim)
  // Results for the query heads of [kv_head_begin, kv_head_end), at their own head index:
  float* out = nullptr;  // [num_q_heads, head_dim], softmax-weighted V, normalised over the run
  float* log_sum_exp = nullptr;  // [num_q_heads], natural log, of the scaled scores of the run
};

// Decode attention over a paged pool for one instruction set. Stateless, thread-safe.
using AttendSegmentFn = void (*)(const kv::PoolGeometry& geometry, const SegmentArgs& args);

enum class Isa {
  kScalar,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmxBf16,
  kNeon,
  kNeonBf16,
  kSve256,  // vectors of 256 bits, with bfloat16 products
};

// "scalar"; "avx2", "avx512", "avx512_bf16", "amx_bf16"; "neon", "neon_bf16", "sve256".
std::string_view IsaName(Isa isa);
// Instruction sets of this CPU that were compiled in, best first; never empty.
std::vector<Isa> SupportedIsas();
// What ChooseIsa takes: "auto" and every IsaName.
std::vector<std::string> IsaChoices();
// `name` is one of IsaChoices. InvalidArgument for an unknown name, FailedPrecondition for one
// this CPU lacks.
absl::StatusOr<Isa> ChooseIsa(std::string_view name);

// The kernel of `isa` (must be supported here) for this geometry. Unimplemented for KV dtypes
// without one.
absl::StatusOr<AttendSegmentFn> GetAttendSegment(Isa isa, const kv::PoolGeometry& geometry);

// Stores `count` (a multiple of 16) floats as `dtype` (float32, bfloat16 or float16), rounded to
// nearest even; NaN stays NaN.
using StoreRowFn = void (*)(const float* from, size_t count, DType dtype, void* to);
// Of an instruction set that is supported here.
StoreRowFn GetStoreRow(Isa isa);

// Merges partial results of several runs of the same query head: out [head_dim] = sum of parts
// weighted by exp(log_sum_exp - max). parts[i] [head_dim]. Numerically safe for any finite
// log_sum_exp.
void MergeSegments(const float* const* parts, const float* log_sum_exps, int32_t count,
                   int32_t head_dim, float* out);

}  // namespace tandem::attention
