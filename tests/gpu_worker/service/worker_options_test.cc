#include "gpu_worker/service/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

class ShapeOnly : public model_files::ModelFiles {
 public:
  ShapeOnly() {
    shape_.max_position = 2048;
    spec_.eos_id = 2;
  }
  const ModelShape& shape() const override { return shape_; }
  const tokenizer::TokenizerSpec& tokenizer() const override { return spec_; }
  const GenerationDefaults& generation_defaults() const override { return defaults; }
  const std::string& name() const override { return name_; }
  std::optional<model_files::WeightView> Find(model_files::WeightRole, int32_t) const override {
    return std::nullopt;
  }
  uint64_t weight_bytes() const override { return 0; }

  GenerationDefaults defaults;

 private:
  ModelShape shape_;
  tokenizer::TokenizerSpec spec_;
  std::string name_ = "m";
};

class WorkerOptionsTest : public testing::Test {
 protected:
  WorkerOptionsTest() {
    flags.model = "m";
    flags.cpu_attention_sockets = {"/tmp/s"};
  }
  WorkerOptions Resolve(DType automatic = DType::kBFloat16) {
    const auto options = ResolveOptions(flags, model, memory, automatic);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.value_or(WorkerOptions{});
  }

  WorkerFlags flags;
  ShapeOnly model;
  MemoryInfo memory = {.total_bytes = 64 * kGiB, .available_bytes = 8 * kGiB};
};

TEST_F(WorkerOptionsTest, DefaultsFollowModelAndMachine) {
  const WorkerOptions options = Resolve();
  EXPECT_EQ(options.engine.max_model_len, 2048);
  EXPECT_EQ(options.pipeline.cpu_kv_bytes, 2 * kGiB);
  EXPECT_EQ(options.pipeline.compute_dtype, DType::kBFloat16);
  EXPECT_EQ(options.pipeline.cpu_kv_dtype, DType::kBFloat16);
  EXPECT_EQ(options.engine.offload, OffloadPolicy::kAuto);
  EXPECT_THAT(options.engine.eos_token_ids, testing::ElementsAre(2));
  EXPECT_EQ(options.cpu_attention_sockets, std::vector<std::string>{"/tmp/s"});
  memory.available_bytes = 64 * kGiB;
  EXPECT_EQ(Resolve().pipeline.cpu_kv_bytes, 4 * kGiB);
}

TEST_F(WorkerOptionsTest, GenerationConfigNamesTheEndTokens) {
  model.defaults.eos_token_ids = {7, 8};
  EXPECT_THAT(Resolve().engine.eos_token_ids, testing::ElementsAre(7, 8));
}

TEST_F(WorkerOptionsTest, ExactModeKeepsFloat32InBothPools) {
  flags.dtype = "float32";
  EXPECT_EQ(Resolve().pipeline.cpu_kv_dtype, DType::kFloat32);
  flags.cpu_kv_dtype = "bfloat16";
  EXPECT_EQ(Resolve().pipeline.cpu_kv_dtype, DType::kBFloat16);
  flags.cpu_kv_dtype = "int8";
  EXPECT_EQ(Resolve().pipeline.cpu_kv_dtype, DType::kInt8);
  flags.cpu_kv_dtype = "fp8_e4m3";
  EXPECT_EQ(Resolve().pipeline.cpu_kv_dtype, DType::kFloat8E4M3);
}

TEST_F(WorkerOptionsTest, TheHostComputesFloat16InFloat32) {
  flags.device = "host";
  flags.dtype = "float16";
  EXPECT_EQ(Resolve().pipeline.compute_dtype, DType::kFloat32);
  EXPECT_EQ(Resolve().pipeline.cpu_kv_dtype, DType::kBFloat16);
}

TEST_F(WorkerOptionsTest, NoPoolNoOffloading) {
  for (const auto& edit : std::vector<std::function<void()>>{
           [&] { flags.cpu_kv_bytes = 0; }, [&] { flags.offload = "off"; },
           [&] { flags.cpu_attention_sockets.clear(); }}) {
    flags = WorkerFlags{};
    flags.model = "m";
    flags.cpu_attention_sockets = {"/tmp/s"};
    edit();
    const WorkerOptions options = Resolve();
    EXPECT_EQ(options.pipeline.cpu_kv_bytes, 0u);
    EXPECT_EQ(options.engine.offload,  // auto paces prefill on the device all the same
              flags.offload == "off" ? OffloadPolicy::kOff : OffloadPolicy::kAuto);
    EXPECT_TRUE(options.cpu_attention_sockets.empty());
  }
}

TEST_F(WorkerOptionsTest, ForcedModes) {
  flags.offload = "all-cpu";
  EXPECT_EQ(Resolve().engine.offload, OffloadPolicy::kAllCpu);
  flags.offload = "asymmetric";
  EXPECT_EQ(Resolve().engine.offload, OffloadPolicy::kAsymmetric);
  flags.offload = "unified";
  EXPECT_EQ(Resolve().engine.offload, OffloadPolicy::kUnified);
}

TEST_F(WorkerOptionsTest, WhatDoesNotFitIsRefused) {
  flags.cpu_kv_bytes = 65 * kGiB;
  EXPECT_THAT(
      std::string(ResolveOptions(flags, model, memory, DType::kBFloat16).status().message()),
      HasSubstr("--cpu-kv-size"));
  flags.cpu_kv_bytes.reset();
  flags.max_model_len = 2049;
  EXPECT_THAT(
      std::string(ResolveOptions(flags, model, memory, DType::kBFloat16).status().message()),
      AllOf(HasSubstr("--max-model-len"), HasSubstr("2048")));
}

TEST_F(WorkerOptionsTest, FlagsOfLaterBuildsAreRefusedByName) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // a machine that has GPUs tests the same
  const std::vector<std::pair<std::string, std::function<void()>>> table = {
      {"--model", [&] { flags.model.clear(); }},
      {"--listen", [&] { flags.listen = "nowhere"; }},
      {"--cpu-attention-socket",
       [&] {
         flags.cpu_attention_sockets = {"a", "b", "a"};
       }},
      {"--device cuda", [&] { flags.device = "cuda"; }},
      {"--tensor-parallel-size", [&] { flags.tensor_parallel_size = 2; }},
      {"--device paced:t5", [&] { flags.device = "paced:t5"; }},
      {"--cpu-kv-size",
       [&] {
         flags.offload = "unified";
         flags.cpu_kv_bytes = 0;
       }},
  };
  for (const auto& [text, edit] : table) {
    flags = WorkerFlags{};
    flags.model = "m";
    flags.cpu_attention_sockets = {"/tmp/s"};
    ASSERT_TRUE(CheckFlags(flags).ok());
    edit();
    EXPECT_THAT(std::string(CheckFlags(flags).message()), HasSubstr(text));
  }
}

TEST_F(WorkerOptionsTest, AnEmulatedDeviceHasTheHostsMemoryToItself) {
  flags.device = "paced:t4";
  ASSERT_TRUE(CheckFlags(flags).ok());
  memory.available_bytes = 64 * kGiB;
  const WorkerOptions options = Resolve(DType::kFloat16);
  EXPECT_EQ(options.pipeline.device, "paced:t4");
  EXPECT_EQ(options.pipeline.compute_dtype, DType::kFloat16);
  EXPECT_EQ(options.pipeline.cpu_kv_dtype, DType::kBFloat16);
  EXPECT_EQ(options.pipeline.cpu_kv_bytes, 16 * kGiB);
  flags.device = "auto";
  EXPECT_EQ(Resolve().pipeline.device, "host");
}

}  // namespace
}  // namespace tandem::gpu_worker
