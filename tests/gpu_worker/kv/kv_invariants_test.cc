#include "gpu_worker/kv/kv_invariants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

// Blocks 0 and 1 of the GPU pool belong to sequence 1, the rest is free; the CPU pool has one of
// two blocks usable.
KvSnapshot Good() {
  KvSnapshot snapshot;
  snapshot.gpu = {4, 4, 16, {1, 1, 0, 0}, {2, 3}};
  snapshot.cpu = {2, 1, 128, {0, 0}, {0}};
  snapshot.tables = {{1, Tier::kGpu, {1, 0}, {}}};
  return snapshot;
}

std::string Verdict(const KvSnapshot& snapshot) {
  return std::string(CheckKvInvariants(snapshot).message());
}

TEST(KvInvariantsTest, AcceptsGoodBooks) { EXPECT_EQ(Verdict(Good()), ""); }

TEST(KvInvariantsTest, FindsEachKindOfDamage) {
  KvSnapshot leaked = Good();
  leaked.gpu.free_list.pop_back();
  EXPECT_THAT(Verdict(leaked), HasSubstr("neither free nor in a table"));

  KvSnapshot shared = Good();
  shared.tables.push_back({2, Tier::kGpu, {1}, {}});
  EXPECT_THAT(Verdict(shared), HasSubstr("claimed twice"));

  KvSnapshot used_and_free = Good();
  used_and_free.gpu.free_list.push_back(0);
  EXPECT_THAT(Verdict(used_and_free), HasSubstr("recorded owner"));

  KvSnapshot wrong_owner = Good();
  wrong_owner.gpu.owners[1] = 9;
  EXPECT_THAT(Verdict(wrong_owner), HasSubstr("recorded owner 9"));

  KvSnapshot unusable = Good();
  unusable.cpu.free_list.push_back(1);
  EXPECT_THAT(Verdict(unusable), HasSubstr("outside the usable part"));

  KvSnapshot owned_too_early = Good();
  owned_too_early.cpu.owners[1] = 3;
  EXPECT_THAT(Verdict(owned_too_early), HasSubstr("before it is usable"));

  KvSnapshot homeless = Good();
  homeless.tables[0].tier = Tier::kNone;
  EXPECT_THAT(Verdict(homeless), HasSubstr("without a pool"));
}

}  // namespace
}  // namespace tandem::gpu_worker
