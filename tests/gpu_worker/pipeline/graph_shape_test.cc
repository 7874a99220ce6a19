#include "gpu_worker/pipeline/graph_shape.h"

#include "gpu_worker/ops/linear.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kCapacity = 2000;
const std::vector<int32_t> kTable = {3, 4};

// Decodes on the device and on the CPU, by sub-batch.
StepLayout Layout(int device_a, int cpu_a, int device_b, int cpu_b) {
  StepLayout layout;
  layout.program.mode = StepMode::kAsymmetric;
  int32_t first = 0;
  for (int x = 0; x < 2; ++x) {
    SubBatchLayout& rows = layout.sub_batch[x];
    rows.rows.first = first;
    for (int i = 0; i < (x == 0 ? device_a + cpu_a : device_b + cpu_b); ++i) {
      const int32_t row = first + rows.rows.count++;
      rows.tokens.push_back(7);
      rows.positions.push_back(20);
      if (i < (x == 0 ? device_a : device_b)) {
        rows.store.push_back({row, 1, 20, kTable});
        rows.decode.push_back({row, 1, 20, kTable});
      } else {
        rows.cpu_rows.push_back(row);
      }
      layout.logit_rows.push_back({row, row});
    }
    first += static_cast<int32_t>(ops::LinearRows(rows.rows.count));
  }
  layout.max_position = 21;
  return layout;
}

std::optional<GraphShape> ShapeOf(const StepLayout& layout) {
  return GraphShapeOf(layout, 512, kCapacity);
}

TEST(GraphShapeTest, LikeStepsShareAGraph) {
  const auto shape = ShapeOf(Layout(5, 2, 0, 9));
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->rows[0], 8);
  EXPECT_EQ(shape->rows[1], 16);
  EXPECT_TRUE(shape == ShapeOf(Layout(2, 6, 0, 16)));
  EXPECT_FALSE(shape == ShapeOf(Layout(5, 4, 0, 9)));  // 16 rows
  EXPECT_FALSE(shape == ShapeOf(Layout(7, 0, 0, 9)));  // no CPU rows in A
  EXPECT_FALSE(shape == ShapeOf(Layout(5, 2, 1, 8)));  // device rows in B
  StepLayout other = Layout(5, 2, 0, 9);
  other.max_position = 5000;
  EXPECT_FALSE(shape == ShapeOf(other));
  other.max_position = 900;
  EXPECT_TRUE(shape == ShapeOf(other));
  other.program.mode = StepMode::kUnified;
  EXPECT_FALSE(shape == ShapeOf(other));
}

TEST(GraphShapeTest, PromptsAndLargeStepsHaveNone) {
  StepLayout layout = Layout(3, 0, 0, 0);
  EXPECT_TRUE(ShapeOf(layout).has_value());
  layout.sub_batch[0].prefill.push_back({3, 4, 0, kTable});
  EXPECT_FALSE(ShapeOf(layout).has_value());
  layout = Layout(3, 0, 0, 0);
  layout.sub_batch[0].cpu_prefill.emplace_back();
  EXPECT_FALSE(ShapeOf(layout).has_value());
  EXPECT_FALSE(ShapeOf(Layout(0, 0, 0, 0)).has_value());
  EXPECT_TRUE(ShapeOf(Layout(500, 0, 0, 0)).has_value());
  EXPECT_FALSE(ShapeOf(Layout(513, 0, 0, 0)).has_value());
  EXPECT_FALSE(GraphShapeOf(Layout(9, 0, 0, 0), 512, 8).has_value());
}

TEST(GraphShapeTest, RowsThatFillUpAreReadByNobody) {
  StepLayout layout = Layout(5, 2, 2, 7);
  const auto shape = ShapeOf(layout);
  ASSERT_TRUE(shape.has_value());
  FillUp(*shape, &layout);
  const int32_t first = layout.sub_batch[1].rows.first;
  EXPECT_EQ(first, ops::LinearRows(8));
  for (int x = 0; x < 2; ++x) {
    const SubBatchLayout& rows = layout.sub_batch[x];
    const auto count = static_cast<size_t>(shape->rows[x]);
    EXPECT_EQ(rows.rows.count, shape->rows[x]);
    EXPECT_EQ(rows.tokens.size(), count);
    EXPECT_EQ(rows.positions.size(), count);
    ASSERT_EQ(rows.decode.size(), count);
    ASSERT_EQ(rows.store.size(), count);
    ASSERT_EQ(rows.cpu_rows.size(), count);
    EXPECT_EQ(rows.decode.back().num_rows, 0);
    EXPECT_EQ(rows.cpu_rows.back(), -1);
    EXPECT_EQ(rows.decode[0].first_row, rows.rows.first);
    EXPECT_EQ(rows.store[1].first_row, rows.rows.first + 1);
  }
  EXPECT_EQ(layout.sub_batch[0].cpu_rows[0], 5);
  EXPECT_EQ(layout.sub_batch[1].cpu_rows[0], first + 2);
  EXPECT_EQ(layout.logit_rows[6].row, 6);
  EXPECT_EQ(layout.logit_rows[7].row, first);
  EXPECT_EQ(layout.logit_rows.back().row, first + 8);
}

}  // namespace
}  // namespace tandem::gpu_worker
