#include "common/exchange/step_descriptor.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem::exchange {
namespace {

absl::Status BadRow(int slot, size_t row, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("step descriptor: slot ", slot, ", row ", row, ": ", what));
}

absl::Status CheckRow(const Geometry& geometry, const StepSlot& copy, int slot, size_t index) {
  const RowDescriptor& row = copy.rows[index];
  if (row.context_tokens < 1 || row.context_tokens > 0x7fffffffu) {
    return BadRow(slot, index, "context_tokens out of range");
  }
  const uint64_t blocks =
      (uint64_t{row.context_tokens} + geometry.block_tokens - 1) / geometry.block_tokens;
  if (row.table_count != blocks) {
    return BadRow(slot, index, "table_count does not cover context_tokens");
  }
  if (row.table_begin > copy.tables.size() || blocks > copy.tables.size() - row.table_begin) {
    return BadRow(slot, index, "table leaves the slot's entries");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSlot(const RegionHeader& header, const std::byte* base, int slot, uint64_t epoch,
                      StepSlot* out) {
  const Geometry& geometry = header.geometry;
  const RegionHeader::Slot& place = header.slots[slot];
  SlotHeader slot_header;
  std::memcpy(&slot_header, base + place.header_offset, sizeof(slot_header));
  out->rows.clear();
  out->tables.clear();
  if (slot_header.epoch != epoch) {
    return absl::InvalidArgumentError(absl::StrCat("step descriptor: slot ", slot, " is of epoch ",
                                                   slot_header.epoch, " instead of ", epoch));
  }
  if (slot_header.num_rows > geometry.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("step descriptor: slot ", slot, ": num_rows ",
                                                   slot_header.num_rows, " of at most ",
                                                   geometry.max_rows));
  }
  if (slot_header.table_entries > geometry.max_table_entries) {
    return absl::InvalidArgumentError(absl::StrCat("step descriptor: slot ", slot,
                                                   ": table_entries ", slot_header.table_entries,
                                                   " of at most ", geometry.max_table_entries));
  }
  if (slot_header.num_rows == 0) {
    return absl::OkStatus();
  }
  if (!std::isfinite(slot_header.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step descriptor: slot ", slot, ": scale is not finite"));
  }
  out->scale = slot_header.scale;
  out->rows.resize(slot_header.num_rows);
  std::memcpy(out->rows.data(), base + place.rows_offset, out->rows.size() * sizeof(RowDescriptor));
  if (slot_header.table_entries == 0) {
    return BadRow(slot, 0, "table leaves the slot's entries");
  }
  out->tables.resize(slot_header.table_entries);
  std::memcpy(out->tables.data(), base + place.tables_offset, out->tables.size() * sizeof(int32_t));
  uint64_t used_entries = 0;
  for (size_t i = 0; i < out->rows.size(); ++i) {
    if (absl::Status status = CheckRow(geometry, *out, slot, i); !status.ok()) {
      return status;
    }
    used_entries += out->rows[i].table_count;
  }
  // Else a few bytes could order work without end.
  if (used_entries > out->tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step descriptor: slot ", slot, ": rows share entries of their block tables"));
  }
  for (const int32_t block : out->tables) {
    if (block < 0 || static_cast<uint64_t>(block) >= geometry.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("step descriptor: slot ", slot, ": block id ",
                                                     block, " of ", geometry.num_blocks));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::exchange
