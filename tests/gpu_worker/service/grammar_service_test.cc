#include "gpu_worker/service/grammar_service.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <iterator>
#include <optional>

#include "common/rpc/status.h"
#include "common/structured_output/xgrammar_library.h"
#include "tests/common/structured_output/require_xgrammar.h"

namespace tandem::gpu_worker {
namespace {

using structured_output::GrammarSpec;
using Constraint = absl::StatusOr<std::shared_ptr<TokenConstraint>>;

class GrammarServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto library = structured_output::XGrammarLibrary::Get(); !library.ok()) {
      structured_output::EndWithoutXGrammar(library.status());
      return;
    }
    tokenizer::TokenizerSpec spec;
    spec.kind = tokenizer::TokenizerSpec::Kind::kTokenizerJson;
    std::ifstream in(TANDEM_TEST_DATA "/goldens/llama3-like/tokenizer.json");
    spec.file = std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    auto tokenizer = tokenizer::Tokenizer::Create(spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    options_.tokenizer = *std::move(tokenizer);
    options_.vocab_size = options_.tokenizer->vocab_size() + 7;  // padded, as models do
    end_ = options_.tokenizer->vocab_size() - 1;
    options_.eos_token_ids = {end_};
  }

  static GrammarSpec Regex(std::string pattern) {
    GrammarSpec spec;
    spec.kind = GrammarSpec::Kind::kRegex;
    spec.text = std::move(pattern);
    spec.param = "structured_outputs";
    return spec;
  }
  static Constraint Prepared(GrammarService& service, const GrammarSpec& spec) {
    auto answered = std::make_shared<std::promise<Constraint>>();
    auto answer = answered->get_future();
    service.Prepare(
        spec, [answered](Constraint constraint) { answered->set_value(std::move(constraint)); });
    if (answer.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      return absl::DeadlineExceededError("no answer");
    }
    return answer.get();
  }
  int32_t Id(const char* text) const { return options_.tokenizer->TokenId(text).value_or(-1); }
  static bool Allows(std::span<const uint32_t> mask, int32_t token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
  }

  GrammarOptions options_;
  int32_t end_ = 0;
};

TEST_F(GrammarServiceTest, MasksFollowTheOutput) {
  const auto service = GrammarService::Create(options_);
  const Constraint constraint = Prepared(*service, Regex("ab+"));
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  std::vector<int32_t> output;
  const auto mask = [&] {
    (*constraint)->Begin(output);
    return (*constraint)->Wait();
  };
  ASSERT_TRUE(mask().ok()) << mask().status();
  EXPECT_TRUE(Allows(*mask(), Id("a")));
  EXPECT_FALSE(Allows(*mask(), Id("b")));
  EXPECT_FALSE(Allows(*mask(), end_));
  EXPECT_FALSE(Allows(*mask(), options_.vocab_size - 1)) << "padding";
  output = {Id("a")};
  EXPECT_TRUE(Allows(*mask(), Id("b")));
  EXPECT_FALSE(Allows(*mask(), end_));
  // Two tokens at once, as for a sequence that was resumed.
  output = {Id("a"), Id("b"), Id("b")};
  EXPECT_TRUE(Allows(*mask(), Id("b")));
  EXPECT_TRUE(Allows(*mask(), end_));
  // A repeated step asks for the same again.
  EXPECT_TRUE(Allows(*mask(), end_));
}

TEST_F(GrammarServiceTest, AnOutputThatDoesNotFollowIsAnError) {
  const auto service = GrammarService::Create(options_);
  const Constraint constraint = Prepared(*service, Regex("ab"));
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  const int32_t output[] = {Id("b")};
  (*constraint)->Begin(output);
  EXPECT_TRUE(absl::IsInternal((*constraint)->Wait().status()));
}

TEST_F(GrammarServiceTest, FaultsNameTheField) {
  const auto service = GrammarService::Create(options_);
  const Constraint constraint = Prepared(*service, Regex("(?=x)"));
  ASSERT_TRUE(absl::IsInvalidArgument(constraint.status())) << constraint.status();
  EXPECT_EQ(rpc::ErrorDetailOf(constraint.status())->param(), "structured_outputs");
  EXPECT_NE(constraint.status().message().find("lookahead"), std::string::npos);
}

TEST_F(GrammarServiceTest, EqualGrammarsAreSharedAndSequencesAreNot) {
  const auto service = GrammarService::Create(options_);
  const Constraint one = Prepared(*service, Regex("ab"));
  const Constraint other = Prepared(*service, Regex("ab"));
  ASSERT_TRUE(one.ok() && other.ok());
  const int32_t output[] = {Id("a")};
  (*one)->Begin(output);
  (*other)->Begin({});
  EXPECT_TRUE(Allows(*(*one)->Wait(), Id("b")));
  EXPECT_TRUE(Allows(*(*other)->Wait(), Id("a")));
  EXPECT_FALSE(Allows(*(*other)->Wait(), Id("b")));
}

TEST_F(GrammarServiceTest, ConstraintsOutliveTheService) {
  auto service = GrammarService::Create(options_);
  const Constraint constraint = Prepared(*service, Regex("ab"));
  ASSERT_TRUE(constraint.ok());
  service.reset();
  (*constraint)->Begin({});
  EXPECT_TRUE((*constraint)->Wait().ok());
}

TEST_F(GrammarServiceTest, SlowOnesAreRefusedWithoutHoldingUpOthers) {
  options_.compile_limit_us = 0;  // everything is late
  const auto service = GrammarService::Create(options_);
  // Whether the watch or the compile comes first is open; an answer comes in any case.
  for (int i = 0; i < 5; ++i) {
    const Constraint constraint = Prepared(*service, Regex("[a-z]{" + std::to_string(i + 1) + "}"));
    EXPECT_TRUE(constraint.ok() || absl::IsInvalidArgument(constraint.status()))
        << constraint.status();
  }
}

TEST_F(GrammarServiceTest, AFullQueueIsSaid) {
  options_.max_waiting = 0;
  const auto service = GrammarService::Create(options_);
  EXPECT_TRUE(absl::IsResourceExhausted(Prepared(*service, Regex("ab")).status()));
}

TEST_F(GrammarServiceTest, AModelWithoutEndTokenHasNone) {
  options_.eos_token_ids.clear();
  const auto service = GrammarService::Create(options_);
  EXPECT_TRUE(absl::IsUnimplemented(Prepared(*service, Regex("ab")).status()));
}

TEST(GrammarServiceWithoutTokenizer, RefusesClearly) {
  const auto service = GrammarService::Create({});
  std::optional<absl::Status> status;
  service->Prepare({}, [&](Constraint constraint) { status = constraint.status(); });
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(absl::IsUnimplemented(*status));
}

}  // namespace
}  // namespace tandem::gpu_worker
