#include "cpu_attention_worker/server/step_log.h"

#include <cstring>
#include <string_view>

#include "common/base/strings.h"

namespace tandem::cpu_attention_worker {
namespace {

// What the peer wrote has no end mark when it fills the field.
std::string_view RequestId(const exchange::RowDescriptor& row) {
  const size_t length = strnlen(row.request_id, sizeof(row.request_id));
  return length == 0 ? std::string_view("-") : std::string_view(row.request_id, length);
}

}  // namespace

std::string DescribeRows(const exchange::StepSlot* const slots[exchange::kNumSlots],
                         size_t max_rows) {
  std::string text;
  size_t shown = 0;
  size_t total = 0;
  for (int slot = 0; slot < exchange::kNumSlots; ++slot) {
    total += slots[slot]->rows.size();
    for (const exchange::RowDescriptor& row : slots[slot]->rows) {
      if (shown == max_rows) {
        break;
      }
      text += base::StrCat(shown == 0 ? "" : ", ", slot == 0 ? "a:" : "b:", row.sequence_id, " ",
                           RequestId(row), " (", row.context_tokens, ")");
      ++shown;
    }
  }
  if (total > shown) {
    text += base::StrCat(shown == 0 ? "" : ", ", total - shown, " more");
  }
  return text;
}

}  // namespace tandem::cpu_attention_worker
