#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/exchange/wait.h"
#include "common/kv_layout/kv_layout.h"

// Plain-data layout of the region that gpu_worker and cpu_attention_worker share. Offsets, never
// pointers. Everything read from it is untrusted until validated.
namespace tandem::exchange {

inline constexpr uint64_t kMagic = 0x4d45444e41543031;  // bytes "10TANDEM"
inline constexpr uint32_t kLayoutVersion = 4;
inline constexpr int kNumSlots = 2;  // one per sub-batch: A, B
inline constexpr int kMaxPosters = 16;
inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kHugePage = size_t{2} << 20;

// What both sides must agree on; written once by gpu_worker.
struct Geometry {
  uint32_t num_layers;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t compute_dtype;  // DType of Q, K, V and O rows: float32, bfloat16 or float16
  uint32_t kv_dtype;       // DType of the CPU pool
  uint32_t block_tokens;   // kv::kCpuBlockTokens
  uint32_t max_rows;       // per slot
  uint64_t num_blocks;
  uint64_t max_table_entries;  // block ids per slot, all rows together
  uint64_t extent_bytes;  // the pool is touched and handed out in extents of this size (last may be
                          // short)
  uint32_t device_wakes;  // 1: the device side wakes futex waiters after posting (host); 0: it
                          // cannot (CUDA)
  // Devices that each write the rows of some of the heads, and ring for themselves.
  uint32_t num_posters = 1;
};

// One row of a step: a sequence's newest token, which attends to everything stored before it and
// itself.
struct RowDescriptor {
  uint32_t context_tokens;  // >= 1, the new token included; it is stored at context_tokens - 1
  uint32_t table_count;     // = ceil(context_tokens / block_tokens)
  uint64_t table_begin;     // index into the slot's block ids
  // For logs alone, so that a request can be followed into the worker; 0 and zeros: unknown.
  uint64_t sequence_id = 0;
  char request_id[40] = {};  // cut to this length; any bytes
};

struct SlotHeader {
  uint64_t epoch;     // of the step this descriptor belongs to
  uint32_t num_rows;  // 0: the slot takes no part
  uint32_t reserved;
  float scale;
  uint32_t reserved2;
  uint64_t table_entries;
};

// A word that nobody sleeps on, with a cache line of its own.
struct alignas(kCacheLine) Word64 {
  std::atomic<uint64_t> value;
};

// A step, seen through the words: gpu_worker writes the descriptors and `epoch`; the worker
// validates, writes `acked_epoch`; gpu_worker sets posted and done to 0 and writes `armed_epoch`;
// then for each layer i and used slot each device writes its posted = i + 1, and once all have, the
// worker answers done = i + 1. An abort: gpu_worker writes `abort_epoch`; the worker leaves the
// step and writes `abort_acked_epoch`, after which it writes nothing of that step any more.
struct Doorbells {
  Word64 epoch;
  Word64 acked_epoch;
  Word64 armed_epoch;
  Word64 abort_epoch;
  Word64 abort_acked_epoch;
  Word64 failed_epoch;   // the worker refused this step's descriptor
  WaitWord step_signal;  // changes with each write of epoch, armed_epoch or abort_epoch; the idle
                         // worker sleeps on it
  WaitWord ack_signal;   // changes with each write of an acked or failed epoch
  WaitWord posted[kNumSlots][kMaxPosters];  // the first num_posters of them are used
  WaitWord done[kNumSlots];  // kDoneReleased: gpu_worker itself released a waiting device
  Word64 gpu_heartbeat;
  Word64 cpu_heartbeat;
};
// Not smaller than any layer also where a device compares by the sign of the difference.
inline constexpr uint32_t kDoneReleased = 0x7fffffff;

// When the worker computed a layer, of base::Clock::NowUs, which is one clock for all processes of
// the machine; written before `done`. For measurements, never for decisions about memory.
struct LayerTiming {
  uint64_t begin_us;
  uint64_t end_us;
};

struct RegionHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;  // sizeof(RegionHeader)
  uint64_t region_bytes;
  Geometry geometry;
  uint64_t doorbells_offset;
  uint64_t timings_offset;  // LayerTiming[kNumSlots][num_layers]
  struct Slot {
    uint64_t header_offset;  // SlotHeader
    uint64_t rows_offset;    // RowDescriptor[max_rows]
    uint64_t tables_offset;  // int32_t[max_table_entries]
    uint64_t q_offset;       // [max_rows, num_q_heads, head_dim] compute dtype
    uint64_t k_offset;       // [max_rows, num_kv_heads, head_dim]
    uint64_t v_offset;
    uint64_t o_offset;  // [max_rows, num_q_heads, head_dim]
  } slots[kNumSlots];
  uint64_t pool_offset;  // multiple of kHugePage
  uint64_t pool_bytes;
};

// All offsets and sizes for a geometry; every part starts on its own page, the pool on a huge page.
// InvalidArgument names the field for sizes that are zero, unsupported or overflow.
absl::StatusOr<RegionHeader> ComputeLayout(const Geometry& geometry);

// Checks a header read from a region of `mapped_bytes` (copied out first: the peer may change it):
// magic, version, and that it equals ComputeLayout of its geometry. InvalidArgument or
// FailedPrecondition (version) name the field.
absl::Status ValidateHeader(const RegionHeader& header, uint64_t mapped_bytes);

kv::PoolGeometry PoolGeometryOf(const Geometry& geometry);

}  // namespace tandem::exchange
