#include "common/exchange/layout.h"

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace tandem::exchange {
namespace {

static_assert(std::is_trivially_copyable_v<RegionHeader>);
static_assert(std::has_unique_object_representations_v<RegionHeader>,
              "both sides must see the same bytes: no padding");
static_assert(std::is_trivially_copyable_v<RowDescriptor>);
static_assert(std::has_unique_object_representations_v<RowDescriptor>);
static_assert(sizeof(RowDescriptor) == kCacheLine);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Doorbells) % kCacheLine == 0 && sizeof(Doorbells) <= kPage);
static_assert(sizeof(RegionHeader) <= kPage && sizeof(SlotHeader) <= kPage);

// No machine has more; keeps every sum of two offsets inside 64 bits.
constexpr uint64_t kMaxRegionBytes = uint64_t{1} << 48;

// Lays parts out one after the other and remembers whether a size overflowed.
class Cursor {
 public:
  // `a` * `b` * `c` bytes that start on a multiple of `alignment`; returns their offset.
  uint64_t Place(uint64_t alignment, uint64_t a, uint64_t b = 1, uint64_t c = 1) {
    uint64_t bytes = 0;
    overflow_ |= __builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, c, &bytes);
    overflow_ |= bytes > kMaxRegionBytes;
    if (overflow_) {
      return 0;
    }
    const uint64_t offset = (end_ + alignment - 1) / alignment * alignment;
    end_ = offset + bytes;
    overflow_ = end_ > kMaxRegionBytes;
    return offset;
  }
  uint64_t end() const { return end_; }
  bool overflow() const { return overflow_; }

 private:
  uint64_t end_ = 0;
  bool overflow_ = false;
};

absl::Status InRange(const char* field, uint64_t value, uint64_t max) {
  if (value < 1 || value > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange geometry: ", field, " is ", value, "; allowed: 1 to ", max));
  }
  return absl::OkStatus();
}

absl::Status CheckGeometry(const Geometry& geometry) {
  const struct {
    const char* field;
    uint64_t value;
    uint64_t max;
  } fields[] = {
      {"num_layers", geometry.num_layers, 1024},
      {"num_q_heads", geometry.num_q_heads, 1024},
      {"num_kv_heads", geometry.num_kv_heads, 1024},
      {"head_dim", geometry.head_dim, 256},
      {"block_tokens", geometry.block_tokens, 4096},
      {"max_rows", geometry.max_rows, 1u << 20},
      {"num_blocks", geometry.num_blocks, 0x7fffffff},  // ids are int32
      {"max_table_entries", geometry.max_table_entries, uint64_t{1} << 32},
      {"extent_bytes", geometry.extent_bytes, kMaxRegionBytes},
      {"num_posters", geometry.num_posters, kMaxPosters},
  };
  for (const auto& field : fields) {
    if (absl::Status status = InRange(field.field, field.value, field.max); !status.ok()) {
      return status;
    }
  }
  const auto compute = static_cast<DType>(geometry.compute_dtype);
  if (compute != DType::kFloat32 && compute != DType::kBFloat16 && compute != DType::kFloat16) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange geometry: compute_dtype ", geometry.compute_dtype));
  }
  if (geometry.num_q_heads % geometry.num_kv_heads != 0) {
    return absl::InvalidArgumentError("exchange geometry: num_q_heads % num_kv_heads is not zero");
  }
  if (geometry.extent_bytes % kHugePage != 0) {
    return absl::InvalidArgumentError("exchange geometry: extent_bytes is not a multiple of 2 MiB");
  }
  if (geometry.device_wakes > 1) {
    return absl::InvalidArgumentError("exchange geometry: device_wakes is neither 0 nor 1");
  }
  return kv::ValidateGeometry(PoolGeometryOf(geometry));
}

absl::Status Same(const std::string& field, uint64_t got, uint64_t want) {
  if (got != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange header: ", field, " is ", got, " instead of ", want));
  }
  return absl::OkStatus();
}

absl::Status SameSlot(int slot, const RegionHeader::Slot& got, const RegionHeader::Slot& want) {
  const struct {
    const char* field;
    uint64_t got;
    uint64_t want;
  } fields[] = {
      {"header_offset", got.header_offset, want.header_offset},
      {"rows_offset", got.rows_offset, want.rows_offset},
      {"tables_offset", got.tables_offset, want.tables_offset},
      {"q_offset", got.q_offset, want.q_offset},
      {"k_offset", got.k_offset, want.k_offset},
      {"v_offset", got.v_offset, want.v_offset},
      {"o_offset", got.o_offset, want.o_offset},
  };
  for (const auto& field : fields) {
    absl::Status status =
        Same(absl::StrCat("slots[", slot, "].", field.field), field.got, field.want);
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

kv::PoolGeometry PoolGeometryOf(const Geometry& geometry) {
  kv::PoolGeometry pool;
  pool.dtype = static_cast<DType>(geometry.kv_dtype);
  pool.num_layers = static_cast<int32_t>(geometry.num_layers);
  pool.num_kv_heads = static_cast<int32_t>(geometry.num_kv_heads);
  pool.head_dim = static_cast<int32_t>(geometry.head_dim);
  pool.block_tokens = static_cast<int32_t>(geometry.block_tokens);
  return pool;
}

absl::StatusOr<RegionHeader> ComputeLayout(const Geometry& geometry) {
  if (absl::Status status = CheckGeometry(geometry); !status.ok()) {
    return status;
  }
  RegionHeader header{};
  header.magic = kMagic;
  header.layout_version = kLayoutVersion;
  header.header_bytes = sizeof(RegionHeader);
  header.geometry = geometry;
  const auto element =
      static_cast<uint64_t>(DTypeBytes(static_cast<DType>(geometry.compute_dtype)));
  const uint64_t q_row = uint64_t{geometry.num_q_heads} * geometry.head_dim;
  const uint64_t kv_row = uint64_t{geometry.num_kv_heads} * geometry.head_dim;

  Cursor cursor;
  cursor.Place(kPage, sizeof(RegionHeader));
  header.doorbells_offset = cursor.Place(kPage, sizeof(Doorbells));
  header.timings_offset = cursor.Place(kPage, kNumSlots, geometry.num_layers, sizeof(LayerTiming));
  for (RegionHeader::Slot& slot : header.slots) {
    slot.header_offset = cursor.Place(kPage, sizeof(SlotHeader));
    slot.rows_offset = cursor.Place(kPage, geometry.max_rows, sizeof(RowDescriptor));
    slot.tables_offset = cursor.Place(kPage, geometry.max_table_entries, sizeof(int32_t));
    slot.q_offset = cursor.Place(kPage, geometry.max_rows, q_row, element);
    slot.k_offset = cursor.Place(kPage, geometry.max_rows, kv_row, element);
    slot.v_offset = cursor.Place(kPage, geometry.max_rows, kv_row, element);
    slot.o_offset = cursor.Place(kPage, geometry.max_rows, q_row, element);
  }
  header.pool_offset =
      cursor.Place(kHugePage, geometry.num_blocks, PoolGeometryOf(geometry).block_bytes());
  header.pool_bytes = cursor.end() - header.pool_offset;
  // Whole huge pages, so that the pool's last one can be huge as well.
  header.region_bytes = (cursor.end() + kHugePage - 1) / kHugePage * kHugePage;
  if (cursor.overflow()) {
    return absl::InvalidArgumentError("exchange geometry: the region would exceed 2^48 bytes");
  }
  return header;
}

absl::Status ValidateHeader(const RegionHeader& header, uint64_t mapped_bytes) {
  if (header.magic != kMagic) {
    return absl::InvalidArgumentError("exchange header: magic is not Tandem's");
  }
  if (header.layout_version != kLayoutVersion) {
    return absl::FailedPreconditionError(absl::StrCat("exchange header: layout_version is ",
                                                      header.layout_version, ", this program's is ",
                                                      kLayoutVersion));
  }
  const absl::StatusOr<RegionHeader> want = ComputeLayout(header.geometry);
  if (!want.ok()) {
    return want.status();
  }
  const struct {
    const char* field;
    uint64_t got;
    uint64_t want;
  } fields[] = {
      {"header_bytes", header.header_bytes, want->header_bytes},
      {"region_bytes", header.region_bytes, want->region_bytes},
      {"mapped bytes", mapped_bytes, want->region_bytes},
      {"doorbells_offset", header.doorbells_offset, want->doorbells_offset},
      {"timings_offset", header.timings_offset, want->timings_offset},
      {"pool_offset", header.pool_offset, want->pool_offset},
      {"pool_bytes", header.pool_bytes, want->pool_bytes},
  };
  for (const auto& field : fields) {
    if (absl::Status status = Same(field.field, field.got, field.want); !status.ok()) {
      return status;
    }
  }
  for (int slot = 0; slot < kNumSlots; ++slot) {
    absl::Status status = SameSlot(slot, header.slots[slot], want->slots[slot]);
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::exchange
