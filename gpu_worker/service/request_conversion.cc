#include "gpu_worker/service/request_conversion.h"

#include <cmath>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/status.h"

namespace tandem::gpu_worker {
namespace {

// Far above what an API offers; bounds the work per token.
constexpr int kMaxLogitBias = 4096;
constexpr int kMaxStopTokens = 4096;
constexpr size_t kMaxRequestIdBytes = 256;

absl::Status Bad(const char* param, const std::string& what) {
  return rpc::WithErrorDetail(absl::InvalidArgumentError(base::StrCat(param, " ", what)), param);
}

absl::Status CheckRange(const char* param, float value, float min, float max) {
  if (!(value >= min && value <= max)) {
    return Bad(param, base::StrCat("is ", value, "; allowed: ", min, " to ", max));
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> ToSampling(const v1::SamplingParams& proto, int32_t vocab_size) {
  constexpr float kMaxTemperature = 100.0f;
  constexpr float kMaxPenalty = 100.0f;
  SamplingParams params;
  params.temperature = proto.temperature();
  params.top_k = proto.top_k();
  params.top_p = proto.top_p() == 0.0f ? 1.0f : proto.top_p();
  params.min_p = proto.min_p();
  params.repetition_penalty =
      proto.repetition_penalty() == 0.0f ? 1.0f : proto.repetition_penalty();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  params.seed = proto.seed();
  TANDEM_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0.0f, kMaxTemperature));
  TANDEM_RETURN_IF_ERROR(CheckRange("top_p", params.top_p, 0.0f, 1.0f));
  TANDEM_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0.0f, 1.0f));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("repetition_penalty", params.repetition_penalty, 1e-3f, kMaxPenalty));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("presence_penalty", params.presence_penalty, -kMaxPenalty, kMaxPenalty));
  TANDEM_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", params.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  if (proto.logit_bias_size() > kMaxLogitBias) {
    return Bad("logit_bias", base::StrCat("has more than ", kMaxLogitBias, " entries"));
  }
  for (const auto& [token, bias] : proto.logit_bias()) {
    if (token < 0 || token >= vocab_size || !std::isfinite(bias)) {
      return Bad("logit_bias",
                 base::StrCat("of token ", token, " is not allowed; the vocabulary has ",
                              vocab_size, " tokens"));
    }
    params.logit_bias.emplace_back(token, bias);
  }
  return params;
}

absl::Status CheckCounts(const v1::GenerateRequest& proto) {
  if (!proto.prompt().empty() || !proto.stop().empty()) {
    return Bad(proto.prompt().empty() ? "stop" : "prompt", "is text, which only routers take");
  }
  if (proto.prompt_token_ids().empty()) {
    return Bad("prompt", "is empty");
  }
  if (proto.max_tokens() < 1) {
    return Bad("max_tokens", base::StrCat("is ", proto.max_tokens(), "; allowed: 1 and more"));
  }
  if (proto.min_tokens() < 0 || proto.min_tokens() > proto.max_tokens()) {
    return Bad("min_tokens", base::StrCat("is ", proto.min_tokens(), "; allowed: 0 to max_tokens"));
  }
  if (proto.generated_token_ids_size() >= proto.max_tokens()) {
    return Bad("max_tokens", "were generated already");
  }
  if (proto.stop_token_ids_size() > kMaxStopTokens) {
    return Bad("stop_token_ids", base::StrCat("has more than ", kMaxStopTokens, " entries"));
  }
  if (proto.has_logprobs() && (proto.logprobs() < 0 || proto.logprobs() > kMaxLogprobs)) {
    return Bad("logprobs", base::StrCat("is ", proto.logprobs(), "; allowed: 0 to ", kMaxLogprobs));
  }
  if (proto.has_prompt_logprobs() &&
      (proto.prompt_logprobs() < 0 || proto.prompt_logprobs() > kMaxLogprobs)) {
    return Bad("prompt_logprobs",
               base::StrCat("is ", proto.prompt_logprobs(), "; allowed: 0 to ", kMaxLogprobs));
  }
  return absl::OkStatus();
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kAbort:
      return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_ABORT;
}

void FillLogprob(const TokenLogprob& from, v1::TokenLogprob* to) {
  to->set_token_id(from.token_id);
  to->set_logprob(from.logprob);
  to->set_rank(from.rank);
}

}  // namespace

absl::StatusOr<GenerationRequest> ToGenerationRequest(const v1::GenerateRequest& proto,
                                                      int32_t vocab_size,
                                                      const base::Clock& clock) {
  TANDEM_RETURN_IF_ERROR(CheckCounts(proto));
  GenerationRequest request;
  TANDEM_ASSIGN_OR_RETURN(request.sampling, ToSampling(proto.sampling(), vocab_size));
  request.request_id = proto.request_id().substr(0, kMaxRequestIdBytes);
  request.prompt_tokens.assign(proto.prompt_token_ids().begin(), proto.prompt_token_ids().end());
  request.resumed_tokens.assign(proto.generated_token_ids().begin(),
                                proto.generated_token_ids().end());
  request.max_tokens = proto.max_tokens();
  request.min_tokens = proto.min_tokens();
  request.ignore_eos = proto.ignore_eos();
  request.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  request.num_logprobs = proto.has_logprobs() ? proto.logprobs() : -1;
  request.num_prompt_logprobs = proto.has_prompt_logprobs() ? proto.prompt_logprobs() : -1;
  request.priority = proto.priority();
  if (proto.deadline_unix_us() != 0) {
    const int64_t left_us = proto.deadline_unix_us() - clock.UnixUs();
    if (left_us <= 0) {
      return absl::DeadlineExceededError("the request's deadline has passed");
    }
    request.deadline_us = clock.NowUs() + left_us;
  }
  return request;
}

absl::StatusOr<structured_output::GrammarSpec> ToGrammarSpec(const v1::GrammarSpec& proto) {
  using Kind = structured_output::GrammarSpec::Kind;
  static constexpr std::pair<v1::GrammarSpec::Kind, Kind> kKinds[] = {
      {v1::GrammarSpec::KIND_JSON_OBJECT, Kind::kJsonObject},
      {v1::GrammarSpec::KIND_JSON_SCHEMA, Kind::kJsonSchema},
      {v1::GrammarSpec::KIND_REGEX, Kind::kRegex},
      {v1::GrammarSpec::KIND_CHOICE, Kind::kChoice},
      {v1::GrammarSpec::KIND_EBNF, Kind::kEbnf},
      {v1::GrammarSpec::KIND_TOOL_CALLS, Kind::kToolCalls}};
  structured_output::GrammarSpec spec;
  bool known = false;
  for (const auto& [from, to] : kKinds) {
    if (proto.kind() == from) {
      spec.kind = to;
      known = true;
    }
  }
  spec.param = proto.param().substr(0, kMaxRequestIdBytes);
  if (!known) {
    return rpc::WithErrorDetail(absl::InvalidArgumentError("the grammar has an unknown kind"),
                                spec.param);
  }
  size_t bytes = proto.text().size();
  for (const std::string& choice : proto.choices()) {
    bytes += choice.size();
  }
  if (bytes > structured_output::kMaxSpecBytes) {
    return rpc::WithErrorDetail(
        absl::InvalidArgumentError(
            base::StrCat("the grammar has more than ", structured_output::kMaxSpecBytes, " bytes")),
        spec.param);
  }
  spec.text = proto.text();
  spec.choices.assign(proto.choices().begin(), proto.choices().end());
  return spec;
}

absl::Status RefusalStatus(const SubmitResult& result) {
  switch (result.outcome) {
    case SubmitOutcome::kAccepted:
      return absl::OkStatus();
    case SubmitOutcome::kQueueFull:
      return absl::ResourceExhaustedError(result.message);
    case SubmitOutcome::kTooLong:
    case SubmitOutcome::kNeverFits:
      return rpc::WithErrorDetail(absl::InvalidArgumentError(result.message), "prompt",
                                  "context_length_exceeded");
    case SubmitOutcome::kInvalidToken:
      return rpc::WithErrorDetail(absl::InvalidArgumentError(result.message), "prompt");
    case SubmitOutcome::kDraining:
    case SubmitOutcome::kStopped:
      return absl::UnavailableError(result.message);
  }
  return absl::InternalError("unknown outcome");
}

void AppendUpdate(const GenerationUpdate& update, v1::GenerateResponse* response) {
  for (size_t i = 0; i < update.tokens.size(); ++i) {
    v1::TokenOutput* output = response->add_tokens();
    output->set_token_id(update.tokens[i]);
    if (i < update.logprobs.size()) {
      FillLogprob(update.logprobs[i].chosen, output->mutable_chosen());
      for (const TokenLogprob& top : update.logprobs[i].top) {
        FillLogprob(top, output->add_top_logprobs());
      }
    }
  }
  if (!update.prompt_logprobs.empty()) {
    response->add_prompt_logprobs();  // the first prompt token has none
    for (const TokenLogprobs& logprobs : update.prompt_logprobs) {
      v1::PromptTokenLogprobs* entry = response->add_prompt_logprobs();
      FillLogprob(logprobs.chosen, entry->mutable_actual());
      for (const TokenLogprob& top : logprobs.top) {
        FillLogprob(top, entry->add_top_logprobs());
      }
    }
  }
  if (update.finish != FinishReason::kNone) {
    response->set_finish_reason(ToProto(update.finish));
    if (update.stop_token) {
      response->set_stop_token_id(*update.stop_token);
    }
    v1::Usage* usage = response->mutable_usage();
    usage->set_prompt_tokens(update.prompt_tokens);
    usage->set_cached_prompt_tokens(update.cached_tokens);
    usage->set_completion_tokens(update.completion_tokens);
  }
}

}  // namespace tandem::gpu_worker
