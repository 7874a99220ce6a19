#include "router/frontend/upstream_request.h"

#include <algorithm>
#include <optional>

#include "router/frontend/grammar_fields.h"

namespace tandem::router {
namespace {

template <typename Requested, typename Default>
float Pick(const std::optional<Requested>& requested, const std::optional<Default>& fallback,
           float otherwise) {
  return requested  ? static_cast<float>(*requested)
         : fallback ? static_cast<float>(*fallback)
                    : otherwise;
}

void FillSampling(const GenerationRequest& request, const GenerationDefaults& defaults,
                  v1::SamplingParams* sampling) {
  sampling->set_temperature(Pick(request.temperature, defaults.temperature, 1.0F));
  sampling->set_top_p(Pick(request.top_p, defaults.top_p, 1.0F));
  sampling->set_min_p(Pick(request.min_p, defaults.min_p, 0.0F));
  sampling->set_repetition_penalty(
      Pick(request.repetition_penalty, defaults.repetition_penalty, 1.0F));
  sampling->set_presence_penalty(static_cast<float>(request.presence_penalty.value_or(0)));
  sampling->set_frequency_penalty(static_cast<float>(request.frequency_penalty.value_or(0)));
  sampling->set_top_k(
      static_cast<int32_t>(request.top_k ? *request.top_k : int64_t{defaults.top_k.value_or(0)}));
  for (const auto& [id, bias] : request.logit_bias) {
    (*sampling->mutable_logit_bias())[id] = bias;
  }
}

}  // namespace

void FillUpstream(const GenerationRequest& request, const GenerationDefaults& defaults,
                  const TokenizedPrompt& prompt, const UpstreamParams& params,
                  v1::GenerateRequest* upstream) {
  upstream->set_request_id(params.request_id);
  upstream->mutable_prompt_token_ids()->Add(prompt.tokens.begin(), prompt.tokens.end());
  FillSampling(request, defaults, upstream->mutable_sampling());
  upstream->mutable_sampling()->set_seed(params.seed);
  upstream->set_max_tokens(params.max_tokens);
  upstream->set_min_tokens(static_cast<int32_t>(request.min_tokens.value_or(0)));
  upstream->set_ignore_eos(request.ignore_eos);
  upstream->mutable_stop_token_ids()->Add(request.stop_token_ids.begin(),
                                          request.stop_token_ids.end());
  upstream->set_priority(static_cast<int32_t>(request.priority.value_or(0)));
  upstream->set_deadline_unix_us(params.deadline_unix_us);
  if (request.grammar) {
    FillGrammar(*request.grammar, upstream->mutable_grammar());
  }
  if (request.logprobs) {
    upstream->set_logprobs(static_cast<int32_t>(*request.logprobs));
  } else if (request.best_of.value_or(1) > request.n.value_or(1)) {
    upstream->set_logprobs(0);  // the best are chosen by them
  }
  if (request.prompt_logprobs || (request.echo && request.logprobs)) {
    upstream->set_prompt_logprobs(static_cast<int32_t>(std::max(
        request.prompt_logprobs.value_or(0), request.echo ? request.logprobs.value_or(0) : 0)));
  }
}

}  // namespace tandem::router
