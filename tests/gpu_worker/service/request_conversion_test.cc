#include "gpu_worker/service/request_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "common/rpc/status.h"

namespace tandem::gpu_worker {
namespace {

using testing::ElementsAre;

class FixedClock : public base::Clock {
 public:
  int64_t NowUs() const override { return 1'000; }
  int64_t UnixUs() const override { return 5'000'000; }
};

constexpr int32_t kVocab = 100;

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  request.add_prompt_token_ids(5);
  request.set_max_tokens(10);
  return request;
}

absl::StatusOr<GenerationRequest> Convert(const v1::GenerateRequest& request) {
  return ToGenerationRequest(request, kVocab, FixedClock());
}

std::string BadParam(const v1::GenerateRequest& request) {
  const auto converted = Convert(request);
  if (converted.status().code() != absl::StatusCode::kInvalidArgument) {
    return "accepted";
  }
  const auto detail = rpc::ErrorDetailOf(converted.status());
  return detail ? detail->param() : "no detail";
}

TEST(RequestConversion, ZeroMeansTheNeutralValue) {
  const auto request = Convert(Good());
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->num_logprobs, -1);
  EXPECT_EQ(request->num_prompt_logprobs, -1);
  EXPECT_EQ(request->deadline_us, 0);
}

TEST(RequestConversion, EveryFieldIsTaken) {
  v1::GenerateRequest proto = Good();
  proto.set_request_id("id");
  proto.add_generated_token_ids(9);
  proto.set_min_tokens(2);
  proto.set_ignore_eos(true);
  proto.add_stop_token_ids(3);
  proto.set_logprobs(0);
  proto.set_prompt_logprobs(4);
  proto.set_priority(-7);
  proto.set_deadline_unix_us(5'000'100);
  auto* sampling = proto.mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_k(4);
  sampling->set_top_p(0.25f);
  sampling->set_min_p(0.125f);
  sampling->set_repetition_penalty(1.5f);
  sampling->set_presence_penalty(-1.0f);
  sampling->set_frequency_penalty(2.0f);
  sampling->set_seed(~uint64_t{0});
  (*sampling->mutable_logit_bias())[99] = -3.0f;
  const auto request = Convert(proto);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->request_id, "id");
  EXPECT_THAT(request->prompt_tokens, ElementsAre(5));
  EXPECT_THAT(request->resumed_tokens, ElementsAre(9));
  EXPECT_EQ(request->max_tokens, 10);
  EXPECT_EQ(request->min_tokens, 2);
  EXPECT_TRUE(request->ignore_eos);
  EXPECT_THAT(request->stop_token_ids, ElementsAre(3));
  EXPECT_EQ(request->num_logprobs, 0);
  EXPECT_EQ(request->num_prompt_logprobs, 4);
  EXPECT_EQ(request->priority, -7);
  EXPECT_EQ(request->deadline_us, 1'100) << "Unix time becomes time of the monotonic clock";
  EXPECT_EQ(request->sampling.top_k, 4);
  EXPECT_EQ(request->sampling.top_p, 0.25f);
  EXPECT_EQ(request->sampling.min_p, 0.125f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request->sampling.presence_penalty, -1.0f);
  EXPECT_EQ(request->sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(request->sampling.seed, ~uint64_t{0});
  EXPECT_THAT(request->sampling.logit_bias, ElementsAre(std::pair(99, -3.0f)));
}

TEST(RequestConversion, BadValuesNameTheirField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using Edit = std::function<void(v1::GenerateRequest&)>;
  const std::vector<std::pair<std::string, Edit>> table = {
      {"prompt", [](auto& r) { r.clear_prompt_token_ids(); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(0); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(1), r.add_generated_token_ids(1); }},
      {"min_tokens", [](auto& r) { r.set_min_tokens(-1); }},
      {"min_tokens", [](auto& r) { r.set_min_tokens(11); }},
      {"logprobs", [](auto& r) { r.set_logprobs(-1); }},
      {"logprobs", [](auto& r) { r.set_logprobs(1'000'000); }},
      {"prompt_logprobs", [](auto& r) { r.set_prompt_logprobs(-2); }},
      {"temperature", [&](auto& r) { r.mutable_sampling()->set_temperature(nan); }},
      {"temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-0.5f); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.5f); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(-0.1f); }},
      {"min_p", [](auto& r) { r.mutable_sampling()->set_min_p(2.0f); }},
      {"repetition_penalty", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(-1); }},
      {"presence_penalty", [&](auto& r) { r.mutable_sampling()->set_presence_penalty(nan); }},
      {"frequency_penalty", [](auto& r) { r.mutable_sampling()->set_frequency_penalty(1e9f); }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[-1] = 1; }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[kVocab] = 1; }},
      {"logit_bias", [&](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = nan; }},
  };
  for (const auto& [param, edit] : table) {
    v1::GenerateRequest request = Good();
    edit(request);
    EXPECT_EQ(BadParam(request), param);
  }
}

TEST(RequestConversion, ADeadlineInThePastIsOver) {
  v1::GenerateRequest proto = Good();
  proto.set_deadline_unix_us(4'999'999);
  EXPECT_EQ(Convert(proto).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(RequestConversion, UpdatesAreMergedInOrder) {
  GenerationUpdate first;
  first.tokens = {1};
  first.logprobs = {{.chosen = {1, -0.5f, 1}, .top = {{1, -0.5f, 1}, {2, -1.0f, 2}}}};
  first.prompt_logprobs = {{.chosen = {8, -2.0f, 3}, .top = {}}};
  GenerationUpdate second;
  second.tokens = {4};
  second.finish = FinishReason::kLength;
  second.prompt_tokens = 2;
  second.completion_tokens = 2;
  v1::GenerateResponse response;
  AppendUpdate(first, &response);
  AppendUpdate(second, &response);
  ASSERT_EQ(response.tokens_size(), 2);
  EXPECT_EQ(response.tokens(0).chosen().logprob(), -0.5f);
  EXPECT_EQ(response.tokens(0).top_logprobs(1).token_id(), 2);
  EXPECT_FALSE(response.tokens(1).has_chosen());
  ASSERT_EQ(response.prompt_logprobs_size(), 2) << "the first prompt token's entry is empty";
  EXPECT_FALSE(response.prompt_logprobs(0).has_actual());
  EXPECT_EQ(response.prompt_logprobs(1).actual().rank(), 3);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(response.has_stop_token_id());
  EXPECT_EQ(response.usage().prompt_tokens(), 2);
}

TEST(RequestConversion, Grammars) {
  v1::GrammarSpec proto;
  proto.set_kind(v1::GrammarSpec::KIND_CHOICE);
  proto.add_choices("yes");
  proto.set_param("guided_choice");
  const auto spec = ToGrammarSpec(proto);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->kind, structured_output::GrammarSpec::Kind::kChoice);
  EXPECT_EQ(spec->choices, (std::vector<std::string>{"yes"}));
  proto.set_text(std::string(structured_output::kMaxSpecBytes, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ToGrammarSpec(proto).status()));
}

}  // namespace
}  // namespace tandem::gpu_worker
