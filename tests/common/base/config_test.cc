#include "common/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace tandem::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

// A program with an option of each kind.
class ConfigTest : public testing::Test {
 protected:
  ConfigTest() {
    spec.String("name", &name, "a name");
    spec.Strings("worker", &workers, "a worker");
    spec.Choice("mode", &mode, {"fast", "safe"}, "a mode");
    spec.Int("port", &port, 0, 65535, "a port");
    spec.OptionalInt("blocks", &blocks, 1, 100, "blocks");
    spec.Double("share", &share, 0.0, 1.0, "a share");
    spec.Bytes("size", &size, "a size");
    spec.Bool("strict", &strict, "strictness");
    spec.Custom(
        "even", "N",
        [this](std::string_view text) {
          even = std::string(text);
          return text == "2" ? absl::OkStatus() : absl::InvalidArgumentError("allowed: 2");
        },
        "an even number");
    spec.Positional("MODEL", &models, 1, "a model");
  }
  ~ConfigTest() override {
    if (!file.empty()) {
      unlink(file.c_str());
    }
  }

  absl::Status Parse(const std::vector<std::string>& args, const Environment& environment = {}) {
    return spec.Parse(args, environment).status();
  }
  std::string Error(const std::vector<std::string>& args, const Environment& environment = {}) {
    const absl::Status status = Parse(args, environment);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  std::string WriteFile(const std::string& text) {
    file = testing::TempDir() + "config_test." + std::to_string(getpid()) + ".yaml";
    std::ofstream(file) << text;
    return file;
  }

  ConfigSpec spec{"program", "Does things."};
  std::string name = "none";
  std::vector<std::string> workers = {"default"};
  std::string mode = "safe";
  int64_t port = 80;
  std::optional<int64_t> blocks;
  double share = 0.5;
  std::optional<uint64_t> size;
  bool strict = false;
  std::string even;
  std::vector<std::string> models;
  std::string file;
};

TEST_F(ConfigTest, DefaultsStay) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(name, "none");
  EXPECT_THAT(workers, ElementsAre("default"));
  EXPECT_EQ(port, 80);
  EXPECT_FALSE(blocks.has_value());
  EXPECT_EQ(spec.SourceOf("port"), "default");
  EXPECT_TRUE(spec.ValuesOf("port").empty());
}

TEST_F(ConfigTest, FlagsInBothSpellings) {
  ASSERT_TRUE(
      Parse({"m.gguf", "--name", "a", "--worker=x", "--worker", "y", "--mode=fast", "--port", "0",
             "--blocks", "7", "--share", "0.25", "--size", "2MiB", "--strict", "--even", "2"})
          .ok());
  EXPECT_EQ(name, "a");
  EXPECT_THAT(workers, ElementsAre("x", "y"));
  EXPECT_EQ(mode, "fast");
  EXPECT_EQ(port, 0);
  EXPECT_EQ(blocks, 7);
  EXPECT_EQ(share, 0.25);
  EXPECT_EQ(size, uint64_t{2} << 20);
  EXPECT_TRUE(strict);
  EXPECT_EQ(even, "2");
  EXPECT_THAT(models, ElementsAre("m.gguf"));
  EXPECT_EQ(spec.SourceOf("port"), "flag");
  EXPECT_THAT(spec.ValuesOf("worker"), ElementsAre("x", "y"));
}

TEST_F(ConfigTest, BooleansCanBeSwitchedOff) {
  strict = true;
  ASSERT_TRUE(Parse({"--no-strict"}).ok());
  EXPECT_FALSE(strict);
  strict = true;
  ASSERT_TRUE(Parse({"--strict=false"}).ok());
  EXPECT_FALSE(strict);
  EXPECT_THAT(Error({"--strict=maybe"}), HasSubstr("--strict"));
}

TEST_F(ConfigTest, FlagBeatsEnvironmentBeatsFile) {
  const std::string path = WriteFile("port: 1\nname: file\nworker: [f1, f2]\nmode: fast\n");
  const Environment environment = {{"TANDEM_PORT", "2"}, {"TANDEM_NAME", "environment"}};
  ASSERT_TRUE(Parse({"--config", path, "--port", "3"}, environment).ok());
  EXPECT_EQ(port, 3);
  EXPECT_EQ(name, "environment");
  EXPECT_THAT(workers, ElementsAre("f1", "f2"));
  EXPECT_EQ(mode, "fast");
  EXPECT_EQ(spec.SourceOf("port"), "flag");
  EXPECT_EQ(spec.SourceOf("name"), "environment");
  EXPECT_EQ(spec.SourceOf("mode"), "file");
  EXPECT_EQ(spec.SourceOf("share"), "default");
}

TEST_F(ConfigTest, FileMayBeJsonAndNamedByTheEnvironment) {
  const std::string path = WriteFile(R"({"port": 5, "worker": ["a"], "size": "1GiB"})");
  ASSERT_TRUE(Parse({}, {{"TANDEM_CONFIG", path}}).ok());
  EXPECT_EQ(port, 5);
  EXPECT_THAT(workers, ElementsAre("a"));
  EXPECT_EQ(size, uint64_t{1} << 30);
}

TEST_F(ConfigTest, ListsInTheEnvironmentHaveCommas) {
  ASSERT_TRUE(Parse({}, {{"TANDEM_WORKER", "a,b"}}).ok());
  EXPECT_THAT(workers, ElementsAre("a", "b"));
}

TEST_F(ConfigTest, ErrorsNameFlagAndWhatIsAllowed) {
  EXPECT_THAT(Error({"--prot", "1"}), HasSubstr("--prot"));
  EXPECT_THAT(Error({"-p"}), HasSubstr("-p"));
  EXPECT_THAT(Error({"--port", "65536"}), AllOf(HasSubstr("--port"), HasSubstr("0 to 65535")));
  EXPECT_THAT(Error({"--port", "8o"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(Error({"--port", ""}), HasSubstr("--port"));
  EXPECT_THAT(Error({"--port", "99999999999999999999"}), HasSubstr("--port"));
  EXPECT_THAT(Error({"--port"}), HasSubstr("needs a value"));
  EXPECT_THAT(Error({"--port", "--strict"}), HasSubstr("needs a value"));
  EXPECT_THAT(Error({"--mode", "slow"}), AllOf(HasSubstr("--mode"), HasSubstr("fast, safe")));
  for (const char* bad : {"nan", "", "0x1", " 0.5", "0.5 ", "1.5", "-0.1", "0.5x", "inf"}) {
    EXPECT_THAT(Error({"--share", bad}), HasSubstr("--share")) << bad;
  }
  EXPECT_TRUE(Parse({"--share", "5e-1"}).ok());
  EXPECT_THAT(Error({"--even", "3"}), AllOf(HasSubstr("--even"), HasSubstr("allowed: 2")));
  EXPECT_THAT(Error({"a", "b"}), HasSubstr("'b'"));
  EXPECT_THAT(Error({}, {{"TANDEM_PORT", "x"}}), HasSubstr("TANDEM_PORT"));
}

TEST_F(ConfigTest, EveryOccurrenceIsCheckedAndTheLastCounts) {
  EXPECT_THAT(Error({"--port", "x", "--port", "1"}), HasSubstr("--port"));
  ASSERT_TRUE(Parse({"--port", "2", "--port", "1"}).ok());
  EXPECT_EQ(port, 1);
}

TEST_F(ConfigTest, BytesKnowSuffixesAndTheirLimits) {
  ASSERT_TRUE(Parse({"--size", "123"}).ok());
  EXPECT_EQ(size, 123u);
  ASSERT_TRUE(Parse({"--size", "900TiB"}).ok());
  EXPECT_EQ(size, uint64_t{900} << 40);
  ASSERT_TRUE(Parse({"--size", "1.5KiB"}).ok());
  EXPECT_EQ(size, 1536u);
  for (const char* bad : {"", "KiB", "-1", "1KB", "1.5", "1e3", "16777216TiB", "nanKiB", "1 2",
                          "0x1.8KiB", "1e3KiB"}) {
    EXPECT_THAT(Error({"--size", bad}), HasSubstr("--size")) << bad;
  }
}

TEST_F(ConfigTest, BadFilesAreErrors) {
  EXPECT_THAT(Error({"--config", "/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(Error({"--config", WriteFile("port: [1, 2")}), HasSubstr(file));
  EXPECT_THAT(Error({"--config", WriteFile("prot: 1")}), HasSubstr("prot"));
  EXPECT_THAT(Error({"--config", WriteFile("port: {a: 1}")}), HasSubstr("port"));
  EXPECT_THAT(Error({"--config", WriteFile("port: [1, 2]")}), HasSubstr("one value"));
  EXPECT_THAT(Error({"--config", WriteFile("port: x")}), HasSubstr("0 to 65535"));
  EXPECT_THAT(Error({"--config", WriteFile("port: 1\nport: 2")}), HasSubstr("port"));
  EXPECT_THAT(Error({"--config", WriteFile("- a")}), HasSubstr("not a map"));
  EXPECT_TRUE(Parse({"--config", WriteFile("")}).ok());
}

TEST_F(ConfigTest, UnknownVariablesAreWarnings) {
  spec.KnownVariable("TANDEM_DEMO");
  ASSERT_TRUE(Parse({}, {{"TANDEM_PROT", "1"}, {"TANDEM_DEMO", "1"}, {"OTHER", "1"}}).ok());
  EXPECT_THAT(spec.warnings(), ElementsAre(HasSubstr("TANDEM_PROT")));
}

TEST_F(ConfigTest, PrintedConfigCanBeReadBack) {
  testing::internal::CaptureStdout();
  const auto outcome = spec.Parse(
      {"--print-config", "--port", "7", "--worker", "a\"b", "--size=1KiB", "--name", "x: y"},
      {{"TANDEM_SHARE", "0.75"}});
  const std::string printed = testing::internal::GetCapturedStdout();
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(*outcome, ConfigSpec::Outcome::kExitZero);
  EXPECT_THAT(printed, HasSubstr("port: 7  # flag\n"));
  EXPECT_THAT(printed, HasSubstr("share: 0.75  # environment\n"));
  EXPECT_THAT(printed, HasSubstr("mode: safe  # default\n"));

  port = 0;
  ASSERT_TRUE(Parse({"--config", WriteFile(printed)}).ok());
  EXPECT_EQ(port, 7);
  EXPECT_THAT(workers, ElementsAre("a\"b"));
  EXPECT_EQ(size, 1024u);
  EXPECT_EQ(name, "x: y");
}

TEST(Config, SecretsAreNotPrinted) {
  std::string key;
  ConfigSpec spec("program", "");
  spec.String("api-key", &key, "a key");
  testing::internal::CaptureStdout();
  ASSERT_TRUE(spec.Parse({"--print-config", "--api-key", "s3cret"}, {}).ok());
  EXPECT_THAT(testing::internal::GetCapturedStdout(), Not(HasSubstr("s3cret")));
}

TEST_F(ConfigTest, HelpListsEveryFlagWithItsDefault) {
  testing::internal::CaptureStdout();
  ASSERT_EQ(*spec.Parse({"--help", "--port", "x"}, {}), ConfigSpec::Outcome::kExitZero);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), spec.Help());
  const std::string help = spec.Help();
  EXPECT_THAT(help, HasSubstr("Usage: program MODEL [flags]"));
  for (const char* text : {"--name", "--mode fast|safe", "default safe", "--size BYTES",
                           "--log-format", "--print-config", "may repeat"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST_F(ConfigTest, HelpAndVersionGoFirst) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(*spec.Parse({"--version"}, {}), ConfigSpec::Outcome::kExitZero);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("program " + std::string(Version())));
}

}  // namespace
}  // namespace tandem::base
