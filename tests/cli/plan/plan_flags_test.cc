#include "cli/plan/plan_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "cli/plan/model_catalog.h"
#include "cli/plan/plan_command.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

PlanFlags Good() {
  PlanFlags flags;
  flags.model = "llama-3.1-8b";
  flags.gpu = "a10g";
  flags.prompt_lens = "100";
  flags.output_lens = "10";
  flags.requests = 5;
  return flags;
}

std::string Fault(const PlanFlags& flags) {
  const auto settings = ResolvePlanFlags(flags);
  return settings.ok() ? "" : std::string(settings.status().message());
}

std::string WriteFile(const std::string& suffix, const std::string& text) {
  std::string path = testing::TempDir() + "/plan_file_XXXXXX" + suffix;
  const int fd = mkstemps(path.data(), static_cast<int>(suffix.size()));
  EXPECT_GE(fd, 0);
  std::ofstream(path) << text;
  return path;
}

TEST(PlanFlags, DefaultsComeFromModelAndProfile) {
  const auto settings = ResolvePlanFlags(Good());
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->dtype, DType::kBFloat16);
  // (23.6 GB * 0.9 - 16.06 GB) / 128 KiB.
  EXPECT_NEAR(static_cast<double>(settings->gpu_kv_tokens), 39'500, 500);
  EXPECT_EQ(settings->cpu_kv_tokens, (int64_t{32} << 30) / 131072);
  EXPECT_THAT(settings->offload, testing::ElementsAre("off", "auto"));
  PlanFlags t4 = Good();
  t4.gpu = "t4";
  t4.model = "llama-2-7b";
  EXPECT_EQ(ResolvePlanFlags(t4)->dtype, DType::kFloat16);
}

TEST(PlanFlags, ListsMakeTheSweep) {
  PlanFlags flags = Good();
  flags.prompt_lens = "50,200";
  flags.output_lens = "10, 20,30";
  flags.rates = "0.5,1";
  flags.cpu_bandwidths = "50";
  const auto settings = ResolvePlanFlags(flags);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_THAT(settings->output_lens, testing::ElementsAre(10, 20, 30));
  EXPECT_THAT(settings->rates, testing::ElementsAre(0.5, 1));
}

TEST(PlanFlags, PartsOfAutoSwitchOff) {
  PlanFlags flags = Good();
  flags.without = "guard,unified";
  const auto settings = ResolvePlanFlags(flags);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_FALSE(settings->switches.guard);
  EXPECT_FALSE(settings->switches.unified);
  EXPECT_TRUE(settings->switches.asymmetric);
  EXPECT_TRUE(settings->switches.chunk_balancing);
}

TEST(PlanFlags, ImpossiblePlansNameTheFlag) {
  const auto with = [](auto change) {
    PlanFlags flags = Good();
    change(flags);
    return Fault(flags);
  };
  EXPECT_EQ(Fault(Good()), "");
  EXPECT_THAT(with([](auto& f) { f.model = ""; }), HasSubstr("--model is missing"));
  EXPECT_THAT(with([](auto& f) { f.model = "llama-9"; }), HasSubstr("--model: 'llama-9'"));
  EXPECT_THAT(with([](auto& f) { f.gpu = "t5"; }), HasSubstr("--gpu: no profile 't5'"));
  EXPECT_THAT(with([](auto& f) { f.model = "/nowhere/config.json"; }),
              HasSubstr("--model: /nowhere/config.json"));
  EXPECT_THAT(with([](auto& f) { f.model = "llama-3.1-70b"; }),
              HasSubstr("--model llama-3.1-70b does not fit"));
  EXPECT_THAT(with([](auto& f) { f.gpu_kv_tokens = 1'000'000; }),
              HasSubstr("--gpu-kv-tokens 1000000"));
  EXPECT_THAT(with([](auto& f) { f.cpu_kv_bytes = 0; }), HasSubstr("--cpu-kv-size gives 0 tokens"));
  EXPECT_THAT(with([](auto& f) { f.cpu_kv_tokens = 64; }), HasSubstr("--cpu-kv-tokens gives 64"));
  EXPECT_THAT(with([](auto& f) { f.prompt_lens = "-5"; }), HasSubstr("--prompt-len: '-5'"));
  EXPECT_THAT(with([](auto& f) { f.prompt_lens = "99999999"; }),
              HasSubstr("--prompt-len: '99999999'"));
  EXPECT_THAT(with([](auto& f) { f.output_lens = "131072"; }),
              HasSubstr("--max-model-len is 131072"));
  EXPECT_THAT(with([](auto& f) { f.requests.reset(); }), HasSubstr("--requests is missing"));
  EXPECT_THAT(with([](auto& f) { f.rates = "0"; }), HasSubstr("--rates: '0'"));
  EXPECT_THAT(with([](auto& f) { f.rates = "1,nan"; }), HasSubstr("--rates: 'nan'"));
  EXPECT_THAT(with([](auto& f) { f.offload = "off,always"; }), HasSubstr("--offload: 'always'"));
  EXPECT_THAT(with([](auto& f) { f.offload = ""; }), HasSubstr("--offload: ''"));
  EXPECT_THAT(with([](auto& f) { f.trace = "x.csv"; }), HasSubstr("--trace gives the lengths"));
  EXPECT_THAT(with([](auto& f) { f.block_size = 48; }), HasSubstr("--block-size is 48"));
  EXPECT_THAT(with([](auto& f) { f.find_rate = true; }),
              HasSubstr("--max-per-token-latency is missing"));
  EXPECT_THAT(with([](auto& f) { f.without = "guard,luck"; }), HasSubstr("--without: 'luck'"));
  EXPECT_THAT(with([](auto& f) { f.concurrency = 4, f.rates = "1"; }),
              HasSubstr("--concurrency and a rate"));
  EXPECT_THAT(with([](auto& f) { f.gpu = "t4", f.dtype = "bfloat16"; }),
              HasSubstr("--dtype bfloat16"));
  EXPECT_THAT(with([](auto& f) { f.tensor_parallel = 3; }), testing::IsEmpty())
      << "found when it runs";
}

TEST(PlanFlags, BrokenProfileFilesNameFileAndField) {
  PlanFlags flags = Good();
  flags.gpu = WriteFile(".yaml", "name: mine\nextends: a10g\nlink:\n  gb_per_s: fast\n");
  EXPECT_THAT(Fault(flags), HasSubstr(flags.gpu + ": line 4: link.gb_per_s is 'fast'"));
}

TEST(PlanFlags, ShapesComeFromConfigFilesToo) {
  const std::string path = WriteFile(
      ".json",
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
          "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
          "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2})");
  const auto model = FindModelShape(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->shape.num_layers, 22);
  EXPECT_EQ(model->shape.num_kv_heads, 4);
  EXPECT_THAT(std::string(FindModelShape(WriteFile(".json", "{")).status().message()),
              HasSubstr("plan_file_"));
}

TEST(PlanCommand, StatusTellsBadInputFromSuccess) {
  const std::vector<std::string> good = {"--model",      "llama-2-7b", "--gpu",        "t4",
                                         "--prompt-len", "64",         "--output-len", "4",
                                         "--requests",   "3"};
  EXPECT_EQ(RunPlan(good), 0);
  const auto with = [&good](std::vector<std::string> more) {
    more.insert(more.begin(), good.begin(), good.end());
    return RunPlan(more);
  };
  const std::string html = testing::TempDir() + "/plan.html";
  EXPECT_EQ(with({"--table", "--html", html}), 0);
  std::ifstream page(html);
  const std::string text{std::istreambuf_iterator<char>(page), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, HasSubstr("<svg"));
  EXPECT_THAT(text, testing::Not(HasSubstr("http")));
  EXPECT_EQ(with({"--find-rate", "--max-per-token-latency", "1", "--offload", "off"}), 0);
  EXPECT_EQ(with({"--deploy", "--max-per-token-latency", "1", "--rate", "1"}), 0);
  EXPECT_EQ(with({"--gpu", "t5"}), 2);
  EXPECT_EQ(with({"--frobnicate"}), 2);
  EXPECT_EQ(with({"--gpu-kv-tokens", "0"}), 2);
  EXPECT_EQ(with({"--gpu-kv-tokens", "16", "--cpu-kv-size", "0", "--offload", "off"}), 2)
      << "no request fits";
  EXPECT_EQ(with({"--tensor-parallel-size", "3"}), 2);
  EXPECT_EQ(RunPlan({"--model", "llama-2-7b", "--gpu", "t4", "--trace", "/nowhere.csv"}), 2);
}

}  // namespace
}  // namespace tandem::cli
