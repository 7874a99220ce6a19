// Garbage in every field of the shared header and of a step's descriptor: both must be refused or
// harmless.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/exchange/layout.h"
#include "common/exchange/step_descriptor.h"

namespace {

using namespace tandem::exchange;

constexpr uint64_t kEpoch = 7;

Geometry SmallGeometry() {
  Geometry geometry{};
  geometry.num_layers = 1;
  geometry.num_q_heads = 2;
  geometry.num_kv_heads = 1;
  geometry.head_dim = 16;
  geometry.compute_dtype = static_cast<uint32_t>(tandem::DType::kFloat32);
  geometry.kv_dtype = static_cast<uint32_t>(tandem::DType::kBFloat16);
  geometry.block_tokens = 128;
  geometry.max_rows = 4;
  geometry.num_blocks = 3;
  geometry.max_table_entries = 8;
  geometry.extent_bytes = kHugePage;
  return geometry;
}

// Takes bytes off the input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  template <typename T>
  T Take() {
    T value{};
    const size_t count = size_ < sizeof(T) ? size_ : sizeof(T);
    if (count > 0) {
      std::memcpy(&value, data_, count);
    }
    data_ += count;
    size_ -= count;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

// What was accepted must keep every access inside pool and slot.
void CheckAccepted(const Geometry& geometry, const StepSlot& slot) {
  Require(slot.rows.size() <= geometry.max_rows);
  for (const RowDescriptor& row : slot.rows) {
    Require(row.context_tokens >= 1);
    Require(uint64_t{row.table_count} * geometry.block_tokens >= row.context_tokens);
    Require(row.table_begin + row.table_count <= slot.tables.size());
    for (uint32_t i = 0; i < row.table_count; ++i) {
      const int32_t block = slot.Table(row)[i];
      Require(block >= 0 && static_cast<uint64_t>(block) < geometry.num_blocks);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const RegionHeader good = ComputeLayout(SmallGeometry()).value();
  // Only the part before the pool: nothing may be read beyond it while a descriptor is checked.
  static const auto region = std::make_unique<std::byte[]>(good.pool_offset);
  const RegionHeader::Slot& place = good.slots[0];
  std::memcpy(region.get(), &good, sizeof(good));
  const SlotHeader slot_header{kEpoch, 2, 0, 0.5f, 0, 4};
  std::memcpy(region.get() + place.header_offset, &slot_header, sizeof(slot_header));
  const RowDescriptor rows[4] = {{129, 2, 0}, {256, 2, 2}, {1, 1, 3}, {1, 1, 0}};
  std::memcpy(region.get() + place.rows_offset, rows, sizeof(rows));
  const int32_t tables[8] = {0, 1, 2, 0, 1, 2, 0, 1};
  std::memcpy(region.get() + place.tables_offset, tables, sizeof(tables));

  Input input(data, size);
  while (!input.empty()) {
    const uint64_t bases[] = {0, place.header_offset, place.rows_offset, place.tables_offset};
    const uint64_t offset = bases[input.Take<uint8_t>() % 4] + input.Take<uint8_t>();
    const auto value = input.Take<uint32_t>();
    std::memcpy(region.get() + offset, &value, sizeof(value));
  }

  RegionHeader header;
  std::memcpy(&header, region.get(), sizeof(header));
  if (ValidateHeader(header, good.region_bytes).ok()) {
    Require(std::memcmp(&header, &good, sizeof(header)) == 0 ||
            header.region_bytes == good.region_bytes);
  }
  StepSlot slot;
  if (ReadSlot(good, region.get(), 0, kEpoch, &slot).ok()) {
    CheckAccepted(good.geometry, slot);
  }
  return 0;
}
