#include <utility>

#include "router/frontend/endpoints/answer_writer.h"

namespace tandem::router {
namespace {

v1::FinishReason ReasonOf(std::string_view reason) {
  return reason.empty()       ? v1::FINISH_REASON_UNSPECIFIED
         : reason == "length" ? v1::FINISH_REASON_LENGTH
                              : v1::FINISH_REASON_STOP;
}

// tandem.v1.Inference: every event is a serialized GenerateResponse.
class GrpcWriter : public AnswerWriter {
 public:
  void Part(const ChoicePart& part, const UsageCounts& usage, const EventSink& sink) override {
    v1::GenerateResponse response;
    response.set_text(std::string(part.text));
    for (const v1::TokenOutput& token : part.tokens) {
      *response.add_tokens() = token;
    }
    for (const v1::PromptTokenLogprobs& entry : part.prompt_logprobs) {
      *response.add_prompt_logprobs() = entry;
    }
    response.set_finish_reason(ReasonOf(part.finish_reason));
    if (part.stop_token_id) {
      response.set_stop_token_id(*part.stop_token_id);
    }
    if (!part.finish_reason.empty()) {
      response.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(usage.prompt_tokens));
      response.mutable_usage()->set_cached_prompt_tokens(static_cast<int32_t>(usage.cached_tokens));
      response.mutable_usage()->set_completion_tokens(
          static_cast<int32_t>(usage.completion_tokens));
    }
    sink("", response.SerializeAsString());
  }

  void End(const UsageCounts&, const EventSink&) override {}
  // The call's status says it.
  void Break(const ApiError&, const EventSink&) override {}
  std::string Whole(std::span<const ChoicePart>, const UsageCounts&) override { return ""; }
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeGrpcWriter() { return std::make_unique<GrpcWriter>(); }

}  // namespace tandem::router
