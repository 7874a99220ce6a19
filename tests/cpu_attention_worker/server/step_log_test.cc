#include "cpu_attention_worker/server/step_log.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tandem::cpu_attention_worker {
namespace {

exchange::StepSlot Slot(uint64_t first_sequence, int rows) {
  exchange::StepSlot slot;
  for (int i = 0; i < rows; ++i) {
    exchange::RowDescriptor row{};
    row.context_tokens = 100 + static_cast<uint32_t>(i);
    row.sequence_id = first_sequence + static_cast<uint64_t>(i);
    slot.rows.push_back(row);
  }
  return slot;
}

std::string Describe(const exchange::StepSlot& a, const exchange::StepSlot& b, size_t max_rows) {
  const exchange::StepSlot* const slots[] = {&a, &b};
  return DescribeRows(slots, max_rows);
}

TEST(DescribeRows, NamesSlotSequenceRequestAndContext) {
  exchange::StepSlot a = Slot(17, 1);
  std::memcpy(a.rows[0].request_id, "cmpl-1", 6);
  EXPECT_EQ(Describe(a, Slot(9, 2), 8), "a:17 cmpl-1 (100), b:9 - (100), b:10 - (101)");
  EXPECT_EQ(Describe(Slot(1, 0), Slot(1, 0), 8), "");
}

TEST(DescribeRows, IsBounded) {
  EXPECT_EQ(Describe(Slot(1, 2), Slot(3, 200), 3),
            "a:1 - (100), a:2 - (101), b:3 - (100), 199 more");
  EXPECT_EQ(Describe(Slot(1, 2), Slot(3, 0), 0), "2 more");
}

TEST(DescribeRows, AnIdThatFillsItsFieldEndsThere) {
  exchange::StepSlot a = Slot(1, 1);
  std::memset(a.rows[0].request_id, 'x', sizeof(a.rows[0].request_id));
  EXPECT_EQ(Describe(a, Slot(1, 0), 1), "a:1 " + std::string(40, 'x') + " (100)");
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
