#pragma once

#include <cstdint>

// What the kernels take: each has one parameter, a struct by value. Plain C++, included by the
// kernels' sources (.cu, as device code and as host code for the tests) and by their launchers.
// Pointers are device pointers unless said otherwise; matrices are row-major; "compute dtype" is
// the kernel's suffix: _f32, _bf16 or _f16.
namespace tandem::gpu_worker::ops::cuda {

enum class ElementType : int32_t { kFloat32, kBFloat16, kFloat16, kInt8, kFloat8E4M3 };

struct EmbedParams {
  const void* table = nullptr;   // [any, width] compute dtype
  const int32_t* ids = nullptr;  // [rows]
  float* out = nullptr;          // [rows, width]
  int32_t rows = 0;
  int32_t width = 0;
};

struct RmsNormParams {
  const float* in = nullptr;         // [.., width]
  const float* weight = nullptr;     // [width]
  const int32_t* row_ids = nullptr;  // [rows] or null: row i is in's row i
  void* out = nullptr;               // [rows, width] compute dtype
  float eps = 0;
  int32_t rows = 0;
  int32_t width = 0;
};

// In place; rows are Q heads, K heads, V heads. Dimension d pairs with d + head_dim / 2.
struct RopeParams {
  float* qkv = nullptr;  // [rows, (num_q_heads + 2 * num_kv_heads) * head_dim]
  const int32_t* positions = nullptr;
  const float* cos = nullptr;     // [.., head_dim / 2]
  const float* sin = nullptr;     // [.., head_dim / 2]
  const float* q_norm = nullptr;  // [head_dim] or null; both or neither
  const float* k_norm = nullptr;
  float eps = 0;
  int32_t rows = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

struct SiluMulParams {
  const void* gate_up = nullptr;  // [rows, 2 * width] compute dtype, gate first
  void* out = nullptr;            // [rows, width] compute dtype
  int32_t rows = 0;
  int32_t width = 0;
};

// out += bias, where the matmul library has no epilogue for it.
struct AddBiasParams {
  float* out = nullptr;         // [rows, width]
  const float* bias = nullptr;  // [width]
  int32_t rows = 0;
  int32_t width = 0;
};

// One layer of a paged KV pool, of either tier, in the layout of docs/kv_layout.md. Block b of the
// layer begins at data + b * block_bytes; head h of it at h * head_bytes; there stand its K tile
// and, k_tile_bytes further, its V tile; scales of int8 at scales_offset from the start of each. A
// device pool is kFloat32 or kBFloat16; a host pool lies in registered memory, at the host's
// address, and has any type but kFloat16.
struct PoolParams {
  char* data = nullptr;
  int64_t block_bytes = 0;
  int64_t head_bytes = 0;
  int64_t k_tile_bytes = 0;
  int64_t scales_offset = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  ElementType dtype = ElementType::kFloat32;
};

// Rows [first_row, first_row + num_rows) of one sequence, positions start_position and on. Token p
// of it stands in block tables[table_begin + p / block_tokens]. Runs without rows, which come last,
// fill up a graph's grid.
struct RunParams {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;
  int32_t table_begin = 0;
  int32_t rows_before = 0;  // of the runs before this one
};

struct RunsParams {
  const RunParams* runs = nullptr;  // [num_runs], device memory
  const int32_t* tables = nullptr;  // device memory
  int32_t num_runs = 0;
  int32_t total_rows = 0;   // at least
  int32_t max_rows = 0;     // of a run, at least
  int32_t max_context = 0;  // largest start_position + num_rows, at least
};

struct QkvParams {
  const float* data = nullptr;  // [rows, (num_q_heads + 2 * num_kv_heads) * head_dim]
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

// K and V of the runs' rows to the pool, in its dtype; before that rounded to what
// a host pool of `kept_as` keeps of them (kFloat32: not at all).
struct StoreKvParams {
  QkvParams qkv;
  RunsParams runs;
  PoolParams pool;
  ElementType kept_as = ElementType::kFloat32;
};

// Causal: the row at position p attends to tokens 0 .. p, which stand in the pool. Unused rows of a
// block may hold anything, NaN included.
struct AttentionParams {
  QkvParams qkv;
  RunsParams runs;
  PoolParams pool;
  float scale = 1.0f;
  void* out = nullptr;  // [rows, num_q_heads * head_dim] compute dtype, by row id
  ElementType out_type = ElementType::kFloat32;  // set by the launchers
  float* scratch = nullptr;                      // of decode attention
  int64_t scratch_floats = 0;
  int32_t num_splits = 1;  // of decode attention; set by its launcher
};

// KV of tokens [first, first + count) of one sequence, num_layers layers from the pools' on,
// num_heads heads, from a pool to another; the other tokens of `to` are not touched. What a host
// pool of lesser precision keeps is what kv::StoreToken keeps, bit by bit.
struct CopyKvParams {
  PoolParams from;
  PoolParams to;
  const int32_t* from_table = nullptr;  // device memory
  const int32_t* to_table = nullptr;
  int32_t from_first_head = 0;
  int32_t to_first_head = 0;
  int32_t num_heads = 0;
  int32_t first = 0;
  int32_t count = 0;
  int32_t num_layers = 1;
  int64_t from_layer_bytes = 0;  // from a layer of a block to the next
  int64_t to_layer_bytes = 0;
};

// Q, K and V of rows `row_ids` (those below 0 are passed over) to an exchange slot (registered host
// memory) in the compute dtype; the slot holds some of the heads: the columns say which.
struct SendRowsParams {
  const float* qkv = nullptr;  // [.., stride]
  const int32_t* row_ids = nullptr;
  void* q = nullptr;  // [num_rows, q_width] of rows of q_stride; the slot's or a window of them
  void* k = nullptr;  // [num_rows, kv_width] of rows of kv_stride
  void* v = nullptr;
  int32_t num_rows = 0;
  int32_t stride = 0;
  int32_t q_column = 0;
  int32_t k_column = 0;
  int32_t v_column = 0;
  int32_t q_width = 0;
  int32_t kv_width = 0;
  int32_t q_stride = 0;
  int32_t kv_stride = 0;
};

// Rows of O from an exchange slot to rows row_ids of out (those below 0 are passed over), from
// column first_column on.
struct JoinRowsParams {
  const void* from = nullptr;  // [num_rows, from_width] of rows of from_stride, compute dtype,
                               // registered host memory
  const int32_t* row_ids = nullptr;
  void* out = nullptr;  // [.., out_width] compute dtype
  int32_t num_rows = 0;
  int32_t from_width = 0;
  int32_t out_width = 0;
  int32_t first_column = 0;
  int32_t from_stride = 0;
};

// Doorbells for devices without stream memory operations. Signal: everything written before is seen
// by the host first. Wait: until int32(*word - value) >= 0, read past the caches.
struct WordParams {
  uint32_t* word = nullptr;  // registered host memory
  uint32_t value = 0;
};

// Of each row the largest logit (the lowest id on ties, NaN counts as minus infinity; 0 where there
// is nothing else).
struct ArgmaxParams {
  const float* logits = nullptr;  // [rows, vocab]
  int32_t* tokens = nullptr;      // [rows]
  int32_t rows = 0;
  int32_t vocab = 0;
};

// What is special about a token of a row that is sampled: what a request asked for, and how often
// the token occurred.
struct TokenEdit {
  int32_t token = 0;  // inside the vocabulary, at most once per row
  float bias = 0;
  int32_t output_count = 0;  // in the output
  int32_t is_forbidden = 0;
  int32_t is_seen = 0;  // in prompt or output
};

// What is wanted of a row of logits (gpu_worker/ops/sampling.h), in device memory.
struct SampleRowParams {
  int32_t given_token = -1;   // >= 0: nothing is sampled, this is the token; inside the vocabulary
  int32_t num_logprobs = -1;  // -1: none; n: of the token and the n best
  uint64_t seed = 0;
  uint64_t position = 0;              // in the output
  const uint32_t* allowed = nullptr;  // bits of allowed tokens, device memory; null: all
  int32_t num_allowed_words = 0;
  int32_t first_edit = 0;
  int32_t num_edits = 0;
  float temperature = 1;
  float top_p = 1;
  float lowest_exponent = -87;  // the larger of -87 and the natural logarithm of min_p
  int32_t top_k = 0;            // 0: all
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
};

struct LogitRowsParams {
  const float* logits = nullptr;                // [rows, vocab]
  const SampleRowParams* row_params = nullptr;  // [rows]
  int32_t* tokens = nullptr;                    // [rows] chosen, inside the vocabulary
  int32_t count = 0;                            // of rows
  int32_t vocab = 0;
};

// Chooses the rows' tokens.
struct SampleParams {
  LogitRowsParams rows;
  float* scratch = nullptr;  // [rows, vocab]
  const TokenEdit* edits = nullptr;
};

struct LogprobEntry {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 + the number of larger logits
};

// Natural logarithms of the softmax over the tokens that a row allows. A row's entries are the
// chosen token's, then those of the num_logprobs best, best first, lower ids first on ties; a
// vocabulary with fewer tokens ends with ids of -1. Rows that want none are left alone.
struct LogprobsParams {
  LogitRowsParams rows;             // whose tokens are read
  LogprobEntry* entries = nullptr;  // [rows, 1 + max_top]
  int32_t max_top = 0;              // the largest num_logprobs
};

}  // namespace tandem::gpu_worker::ops::cuda
