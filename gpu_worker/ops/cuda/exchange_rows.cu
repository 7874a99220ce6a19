#include "gpu_worker/ops/cuda/numbers.cuh"

// The device's ends of the exchange with the CPU side: rows to and from registered host memory, and
// its doorbells.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kExchangeThreads = 128;

// Columns [column, column + width) of a row, both multiples of 4.
template <typename Type>
TANDEM_DEVICE void SendColumns(const float* in, int width, void* out, int64_t to) {
  for (int i = ThreadIndex() * 4; i < width; i += BlockThreads() * 4) {
    float values[4];
    LoadFour<Float32>(in, i, values);
    StoreFour<Type>(out, to + i, values);
  }
}

// Grid [rows].
template <typename Type>
TANDEM_DEVICE void SendRow(const SendRowsParams& params) {
  if (params.row_ids[BlockX()] < 0) {
    return;
  }
  const float* in = params.qkv + int64_t{params.row_ids[BlockX()]} * params.stride;
  SendColumns<Type>(in + params.q_column, params.q_width, params.q,
                    int64_t{BlockX()} * params.q_stride);
  SendColumns<Type>(in + params.k_column, params.kv_width, params.k,
                    int64_t{BlockX()} * params.kv_stride);
  SendColumns<Type>(in + params.v_column, params.kv_width, params.v,
                    int64_t{BlockX()} * params.kv_stride);
}

// Grid [rows]; elements of `element` bytes; widths and columns are multiples of 8.
TANDEM_DEVICE void JoinRow(const JoinRowsParams& params, int element) {
  if (params.row_ids[BlockX()] < 0) {
    return;
  }
  const char* from =
      static_cast<const char*>(params.from) + int64_t{BlockX()} * params.from_stride * element;
  const int64_t first = int64_t{params.row_ids[BlockX()]} * params.out_width + params.first_column;
  char* out = static_cast<char*>(params.out) + first * element;
  for (int i = ThreadIndex() * 16; i < params.from_width * element; i += BlockThreads() * 16) {
    StoreGlobal(out + i, LoadGlobal<Words4>(from + i));
  }
}

}  // namespace

TANDEM_KERNEL(send_rows_f32, SendRowsParams, kExchangeThreads, kNoBarriers) {
  SendRow<Float32>(params);
}
TANDEM_KERNEL(send_rows_bf16, SendRowsParams, kExchangeThreads, kNoBarriers) {
  SendRow<BFloat16>(params);
}
TANDEM_KERNEL(send_rows_f16, SendRowsParams, kExchangeThreads, kNoBarriers) {
  SendRow<Half>(params);
}

TANDEM_KERNEL(join_rows_32, JoinRowsParams, kExchangeThreads, kNoBarriers) { JoinRow(params, 4); }
TANDEM_KERNEL(join_rows_16, JoinRowsParams, kExchangeThreads, kNoBarriers) { JoinRow(params, 2); }

// One thread each.
TANDEM_KERNEL(signal_word, WordParams, 1, kNoBarriers) {
  FenceSystem();
  StoreVolatile(params.word, params.value);
}

TANDEM_KERNEL(wait_word, WordParams, 1, kNoBarriers) {
  while (static_cast<int32_t>(LoadVolatile(params.word) - params.value) < 0) {
    Pause();
  }
  FenceSystem();
}

}  // namespace tandem::gpu_worker::ops::cuda
