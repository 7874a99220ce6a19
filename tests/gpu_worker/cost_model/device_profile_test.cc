#include "gpu_worker/cost_model/device_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "gpu_worker/cost_model/built_in_profiles.h"

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

std::string T4() { return std::string(*BuiltInProfileText("t4")); }

std::string Fault(const std::string& yaml) {
  const auto profile = ParseDeviceProfile(yaml);
  return profile.ok() ? "" : std::string(profile.status().message());
}

std::string T4With(const std::string& from, const std::string& to) {
  EXPECT_THAT(T4(), HasSubstr(from));
  return absl::StrReplaceAll(T4(), {{from, to}});
}

TEST(DeviceProfile, EveryBuiltInIsWhole) {
  EXPECT_THAT(BuiltInDeviceProfileNames(),
              IsSupersetOf({"t4", "a10g", "l4", "a100", "h100", "h200", "g4dn.4xlarge",
                            "g5.2xlarge", "g5.4xlarge", "g5.8xlarge", "g5.16xlarge", "hgx-h100"}));
  for (const std::string& name : BuiltInDeviceProfileNames()) {
    const auto profile = BuiltInDeviceProfile(name);
    ASSERT_TRUE(profile.ok()) << name << ": " << profile.status();
    EXPECT_EQ(profile->name, name);
  }
}

TEST(DeviceProfile, EveryNumberHasItsSource) {
  for (const BuiltInProfile& profile : BuiltInProfiles()) {
    for (size_t begin = 0; begin < profile.yaml.size();) {
      const size_t end = std::min(profile.yaml.find('\n', begin), profile.yaml.size());
      const std::string line(profile.yaml.substr(begin, end - begin));
      begin = end + 1;
      if (line.find_first_of("0123456789") != std::string::npos && line.find(": ") != line.npos &&
          line.rfind("name:", 0) != 0 && line.rfind("extends:", 0) != 0) {
        EXPECT_THAT(line, HasSubstr("# ")) << profile.name;
      }
    }
  }
}

TEST(DeviceProfile, ExtendsTakesTheRestFromAnotherProfile) {
  const auto base = BuiltInDeviceProfile("a10g");
  const auto host = ParseDeviceProfile("name: mine\nextends: a10g\nhost:\n  cores: 7\n");
  ASSERT_TRUE(base.ok() && host.ok()) << host.status();
  EXPECT_EQ(host->name, "mine");
  EXPECT_EQ(host->host_cores, 7);
  EXPECT_EQ(host->gpu_memory_gb_per_s, base->gpu_memory_gb_per_s);
}

TEST(DeviceProfile, FaultsNameTheField) {
  EXPECT_THAT(Fault(T4With("name: t4", "")), HasSubstr("name is missing"));
  EXPECT_THAT(Fault(T4With("  memory_gb: 15.6 ", "  memory_bg: 15.6 ")),
              HasSubstr("gpu.memory_bg is no field"));
  EXPECT_THAT(Fault(T4With("  memory_gb: 15.6 ", "  memory_gb: -1 ")),
              HasSubstr("line 4: gpu.memory_gb is '-1'; allowed: a number from"));
  EXPECT_THAT(Fault(T4With("  memory_gb: 15.6 ", "  memory_gb: nan ")), HasSubstr("'nan'"));
  EXPECT_THAT(Fault(T4With("  memory_gb: 15.6 ", "  memory_gb: much ")), HasSubstr("'much'"));
  EXPECT_THAT(Fault(T4With("  memory_efficiency: 0.75 ", "  memory_efficiency: 1.5 ")),
              HasSubstr("gpu.memory_efficiency is '1.5'"));
  EXPECT_THAT(Fault(T4With("  exchange_us: 15 ", "")), HasSubstr("host.exchange_us is missing"));
  EXPECT_THAT(Fault(T4With("    float16: 65 ", "    float16: 0 ")),
              HasSubstr("gpu.tflops.float16 and gpu.tflops.bfloat16"));
  EXPECT_THAT(Fault("name: x\nextends: gpu9000\n"), HasSubstr("extends is 'gpu9000'"));
  EXPECT_THAT(Fault("name: [x]\n"), HasSubstr("name"));
  EXPECT_THAT(std::string(BuiltInDeviceProfile("t5").status().message()), HasSubstr("t4"));
  EXPECT_THAT(std::string(LoadDeviceProfile("/nowhere/x.yaml").status().message()),
              HasSubstr("/nowhere/x.yaml"));
}

TEST(DeviceProfile, TimesFollowFromTheNumbers) {
  DeviceProfile profile;
  profile.gpu_memory_gb_per_s = 100;
  profile.gpu_memory_efficiency = 0.5;
  profile.gpu_attention_efficiency = 0.25;
  profile.gpu_tflops_float16 = 10;
  profile.gpu_compute_efficiency = 0.5;
  profile.gpu_attention_compute_efficiency = 0.1;
  profile.link_gb_per_s = 10;
  profile.link_efficiency = 0.5;
  profile.link_latency_us = 3;
  profile.gpu_all_reduce_gb_per_s = 1;
  profile.gpu_all_reduce_latency_us = 5;
  profile.host_memory_gb_per_s = 20;
  profile.host_attention_efficiency = 0.5;
  profile.host_cores = 2;
  profile.host_attention_gflops_per_core = 10;
  profile.gpu_graph_launch_us = 0.5;
  EXPECT_DOUBLE_EQ(ElementwiseUs(profile, 50e3), 1.5);
  EXPECT_EQ(ElementwiseUs(profile, 0), 0);
  // 1e6 weights and 2e3 activations a row, of 2 bytes, at 50e3 a us; a row costs 2e6 / 5e6 us.
  EXPECT_DOUBLE_EQ(MatmulUs(profile, {1, 1000, 1000, DType::kFloat16}), 0.5 + 40.08);
  EXPECT_DOUBLE_EQ(MatmulUs(profile, {1000, 1000, 1000, DType::kFloat16}), 0.5 + 400);
  EXPECT_EQ(MatmulUs(profile, {0, 1000, 1000, DType::kFloat16}), 0);
  EXPECT_DOUBLE_EQ(DecodeAttentionUs(profile, 25e3), 1.5);
  EXPECT_EQ(DecodeAttentionUs(profile, 0), 0);
  EXPECT_DOUBLE_EQ(PrefillAttentionUs(profile, 10e6, 25e3, DType::kFloat16), 10.5);
  EXPECT_DOUBLE_EQ(PrefillAttentionUs(profile, 1e3, 25e3, DType::kFloat16), 1.5);
  EXPECT_DOUBLE_EQ(LinkUs(profile, 5e3), 4);
  EXPECT_EQ(LinkUs(profile, 0), 0);
  EXPECT_DOUBLE_EQ(AllReduceUs(profile, 1e3, 2), 6);
  EXPECT_EQ(AllReduceUs(profile, 1e3, 1), 0);
  EXPECT_DOUBLE_EQ(CpuAttentionBytesPerUs(profile, 1), 10e3);  // memory
  EXPECT_DOUBLE_EQ(CpuAttentionBytesPerUs(profile, 4), 5e3);   // cores
}

}  // namespace
}  // namespace tandem::gpu_worker
