#pragma once

#include <cstdint>
#include <span>

#include "common/exchange/device_side.h"
#include "gpu_worker/ops/attention.h"

// The device's ends of the exchange with the CPU attention worker, in stream order.
namespace tandem::gpu_worker::ops {

// KV heads of an exchange, with their query heads, that one device serves.
struct ExchangeWindow {
  int32_t first_kv_head = 0;  // among the exchange's
  int32_t num_kv_heads = 0;   // 0: all that it has
  int poster = 0;             // whose bell it is
};

// Rows `row_ids` of `qkv` to the slot, as Q, K and V in the compute dtype; then rings for `layer`.
// Of an exchange that holds some of the heads those, from KV head `first_kv_head` on. A device that
// holds some of the exchange's heads itself (CUDA) sends `window`'s, and rings its own bell.
struct SendRowsArgs {
  QkvRows qkv;
  std::span<const int32_t> row_ids;
  exchange::DeviceSide* exchange = nullptr;
  int32_t first_kv_head = 0;
  ExchangeWindow window;
  int slot = 0;
  int32_t layer = 0;
};
void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args);

// Waits for the slot's outputs of `layer` and puts them to rows `row_ids` of `out` [rows, width] in
// the compute dtype, from column `first_column` on. Unavailable, of the stream, when the worker was
// lost or is late.
struct JoinRowsArgs {
  std::span<const int32_t> row_ids;
  exchange::DeviceSide* exchange = nullptr;
  ExchangeWindow window;
  int slot = 0;
  int32_t layer = 0;
  int64_t timeout_us = 0;
  int64_t width = 0;
  int64_t first_column = 0;
  std::byte* out = nullptr;
};
void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args);

// Once per step, slot and exchange, after its BeginStep and whether or not the joins are queued one
// by one: makes sure that they end, and that a lost or late worker is `stream`'s error. `args`: of
// the last layer.
void WatchJoins(OpContext& context, device::Stream& stream, const JoinRowsArgs& args);

// Elements of a Q or O row, and of a K or V row, that an exchange holds, or a window of it.
int64_t QueryWidth(const exchange::DeviceSide& exchange);
int64_t KvWidth(const exchange::DeviceSide& exchange);
int64_t QueryWidth(const exchange::DeviceSide& exchange, const ExchangeWindow& window);
int64_t KvWidth(const exchange::DeviceSide& exchange, const ExchangeWindow& window);

// The waiting part of a join, on a stream's thread.
absl::Status WaitForRows(const JoinRowsArgs& args);

}  // namespace tandem::gpu_worker::ops
