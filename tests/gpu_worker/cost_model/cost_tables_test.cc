#include "gpu_worker/cost_model/cost_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

CostTables Tables() {
  CostTables tables;
  tables.num_layers = 4;
  tables.linear = {{1, 16, 64}, {100, 110, 400}};
  tables.prefill = {{16, 64}, {0, 1000}, {10, 60, 40, 240}};
  tables.gpu_decode = {{1, 8}, {32, 1024}, {2, 30, 16, 240}};
  tables.cpu_decode = {{1, 8}, {32, 1024}, {40, 130, 100, 900}};
  tables.transfer = {{1, 64}, {1, 10}};
  tables.copy = {{16, 1024}, {5, 200}};
  tables.launch_us = 3;
  tables.overlap = 0.5;
  return tables;
}

std::shared_ptr<const CostModel> Model(const CostTables& tables) {
  MeasuredRates rates;
  rates.num_layers = 4;
  rates.copy_bytes_per_us = 100;
  rates.kv_bytes_per_token_layer = 50;
  return MakeTableCostModel(tables, MakeRooflineCostModel(rates));
}

TEST(CostTablesTest, PointsBetweenAndBeyond) {
  const auto model = Model(Tables());
  EXPECT_EQ(model->LinearUs(0), 0);
  EXPECT_DOUBLE_EQ(model->LinearUs(16), 110);
  EXPECT_DOUBLE_EQ(model->LinearUs(40), 255);
  EXPECT_DOUBLE_EQ(model->LinearUs(112), 690) << "goes on with the last slope";
  EXPECT_DOUBLE_EQ(model->PrefillUs(40, 500), (10 + 60 + 40 + 240) / 4.0);
  EXPECT_DOUBLE_EQ(model->GpuDecodeUs(8, 8 * 1024), 240);
  EXPECT_DOUBLE_EQ(model->CpuDecodeUs(1, 32), 40);
  EXPECT_DOUBLE_EQ(model->CpuDecodeUs(15, 15 * 1024), 1670) << "bilinear beyond the corner";
  EXPECT_DOUBLE_EQ(model->CpuDecodeUs(1, 8), 40) << "never below the first point";
  EXPECT_EQ(model->LaunchUs(), 3);
  EXPECT_EQ(model->overlap(), 0.5);
  EXPECT_EQ(model->num_layers(), 4);
}

TEST(CostTablesTest, MoreWorkNeverLooksCheaper) {
  CostTables tables = Tables();
  tables.linear.us = {100, 90, 400};
  tables.cpu_decode.us = {40, 30, 20, 10};
  const auto model = Model(tables);
  double before = 0;
  for (int rows = 1; rows < 200; ++rows) {
    EXPECT_GE(model->LinearUs(rows), before);
    before = model->LinearUs(rows);
  }
  EXPECT_GE(model->CpuDecodeUs(8, 8 * 1024), model->CpuDecodeUs(1, 32));
}

TEST(CostTablesTest, WithoutACpuTierItsTermsAreGuessed) {
  CostTables tables = Tables();
  tables.cpu_decode = {};
  tables.transfer = {};
  tables.copy = {};
  ASSERT_TRUE(ValidateCostTables(tables).ok());
  EXPECT_DOUBLE_EQ(Model(tables)->CopyUs(10), 5);
}

TEST(CostTablesTest, WrongTablesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::function<void(CostTables&)>>> table = {
      {"num_layers", [](CostTables& t) { t.num_layers = 0; }},
      {"overlap", [](CostTables& t) { t.overlap = 1.5; }},
      {"launch_us", [](CostTables& t) { t.launch_us = -1; }},
      {"linear", [](CostTables& t) { t.linear = {}; }},
      {"linear",
       [](CostTables& t) {
         t.linear.at = {1, 16, 16};
       }},
      {"linear", [](CostTables& t) { t.linear.us.pop_back(); }},
      {"prefill", [](CostTables& t) { t.prefill.us[2] = 0; }},
      {"gpu_decode",
       [](CostTables& t) { t.gpu_decode.us[0] = std::numeric_limits<double>::quiet_NaN(); }},
      {"cpu_decode", [](CostTables& t) { t.cpu_decode.columns.pop_back(); }},
      {"transfer", [](CostTables& t) { t.transfer = {}; }},
      {"copy", [](CostTables& t) { t.copy.at[0] = -3; }},
  };
  for (const auto& [name, edit] : table) {
    CostTables tables = Tables();
    ASSERT_TRUE(ValidateCostTables(tables).ok());
    edit(tables);
    EXPECT_THAT(std::string(ValidateCostTables(tables).message()), HasSubstr(name));
  }
}

TEST(CostTablesTest, TheFileGivesBackWhatWasWritten) {
  const CostTables tables = Tables();
  const absl::StatusOr<CostTables> read = ReadCostTables(WriteCostTables(tables, "a key"), "a key");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->linear.us, tables.linear.us);
  EXPECT_EQ(read->cpu_decode.us, tables.cpu_decode.us);
  EXPECT_EQ(read->copy.at, tables.copy.at);
  EXPECT_EQ(read->overlap, tables.overlap);
  EXPECT_EQ(read->num_layers, 4);
}

TEST(CostTablesTest, AnotherKeyOrVersionSaysSo) {
  const std::string text = WriteCostTables(Tables(), "isa avx2");
  const absl::Status other = ReadCostTables(text, "isa avx512").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("avx2"));
  std::string old = text;
  old.replace(old.find(" 1\n"), 3, " 0\n");
  EXPECT_EQ(ReadCostTables(old, "isa avx2").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CostTablesTest, EveryTruncationAndEveryFlippedByteIsNoticed) {
  const std::string text = WriteCostTables(Tables(), "key");
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ReadCostTables(text.substr(0, length), "key").ok()) << length;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(ReadCostTables(damaged, "key").ok()) << i;
  }
  EXPECT_FALSE(ReadCostTables(text + "more\n", "key").ok());
}

}  // namespace
}  // namespace tandem::gpu_worker
