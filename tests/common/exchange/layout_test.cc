#include "common/exchange/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/common/exchange/test_geometry.h"

namespace tandem::exchange {
namespace {

using testing::HasSubstr;

TEST(Layout, PartsDoNotOverlapAndStartOnPages) {
  for (uint32_t rows : {1u, 7u, 256u}) {
    Geometry geometry = SmallGeometry();
    geometry.max_rows = rows;
    const RegionHeader header = ComputeLayout(geometry).value();
    std::vector<std::pair<uint64_t, uint64_t>> parts = {
        {0, sizeof(RegionHeader)},
        {header.doorbells_offset, sizeof(Doorbells)},
        {header.timings_offset, 2 * 3 * sizeof(LayerTiming)},
        {header.pool_offset, header.pool_bytes}};
    for (const RegionHeader::Slot& slot : header.slots) {
      parts.push_back({slot.header_offset, sizeof(SlotHeader)});
      parts.push_back({slot.rows_offset, rows * sizeof(RowDescriptor)});
      parts.push_back({slot.tables_offset, 32 * sizeof(int32_t)});
      parts.push_back({slot.q_offset, uint64_t{rows} * 4 * 32 * 4});
      parts.push_back({slot.k_offset, uint64_t{rows} * 2 * 32 * 4});
      parts.push_back({slot.v_offset, uint64_t{rows} * 2 * 32 * 4});
      parts.push_back({slot.o_offset, uint64_t{rows} * 4 * 32 * 4});
    }
    std::sort(parts.begin(), parts.end());
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].first % kPage, 0u);
      const uint64_t end = parts[i].first + parts[i].second;
      EXPECT_LE(end, i + 1 < parts.size() ? parts[i + 1].first : header.region_bytes);
    }
    EXPECT_EQ(header.pool_offset % kHugePage, 0u);
    EXPECT_EQ(header.pool_bytes, 16 * PoolGeometryOf(geometry).block_bytes());
    EXPECT_TRUE(ValidateHeader(header, header.region_bytes).ok());
  }
}

TEST(Layout, RefusesBadGeometryByField) {
  const auto refused = [](auto change) {
    Geometry geometry = SmallGeometry();
    change(geometry);
    return std::string(ComputeLayout(geometry).status().message());
  };
  EXPECT_THAT(refused([](Geometry& g) { g.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(refused([](Geometry& g) { g.num_blocks = ~0ull; }), HasSubstr("num_blocks"));
  EXPECT_THAT(refused([](Geometry& g) { g.max_rows = 0; }), HasSubstr("max_rows"));
  EXPECT_THAT(refused([](Geometry& g) { g.num_q_heads = 5; }), HasSubstr("num_q_heads"));
  EXPECT_THAT(refused([](Geometry& g) { g.compute_dtype = 77; }), HasSubstr("compute_dtype"));
  EXPECT_THAT(refused([](Geometry& g) { g.kv_dtype = 2; }), HasSubstr("float16"));
  EXPECT_THAT(refused([](Geometry& g) { g.kv_dtype = 77; }), HasSubstr("fp8_e4m3"));
  EXPECT_THAT(refused([](Geometry& g) { g.extent_bytes = 4096; }), HasSubstr("extent_bytes"));
  EXPECT_THAT(refused([](Geometry& g) { g.device_wakes = 2; }), HasSubstr("device_wakes"));
  EXPECT_THAT(refused([](Geometry& g) {
                g.num_blocks = 0x7fffffff;
                g.num_layers = 1024;
                g.num_kv_heads = g.num_q_heads = 1024;
                g.head_dim = 256;
              }),
              HasSubstr("2^48"));
}

TEST(Layout, HeaderMustEqualTheComputedOne) {
  const RegionHeader good = ComputeLayout(SmallGeometry()).value();
  RegionHeader header = good;
  header.magic ^= 1;
  EXPECT_FALSE(ValidateHeader(header, good.region_bytes).ok());
  header = good;
  header.layout_version = kLayoutVersion + 1;
  EXPECT_EQ(ValidateHeader(header, good.region_bytes).code(),
            absl::StatusCode::kFailedPrecondition);
  header = good;
  header.slots[1].o_offset += 64;
  EXPECT_THAT(std::string(ValidateHeader(header, good.region_bytes).message()),
              HasSubstr("slots[1].o_offset"));
  EXPECT_FALSE(ValidateHeader(good, good.region_bytes - 1).ok());
}

}  // namespace
}  // namespace tandem::exchange
