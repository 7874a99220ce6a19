#include "router/frontend/output_choice.h"

#include <algorithm>
#include <utility>

namespace tandem::router {
namespace {

TokenNaming NamingOf(const GenerationRequest& request, const ModelText* text) {
  return {text != nullptr ? text->tokenizer.get() : nullptr, request.return_tokens_as_token_ids};
}

// The pieces of each call, which follow one another, become one.
void JoinCalls(std::vector<tool_calls::CallDelta>* calls) {
  std::vector<tool_calls::CallDelta> joined;
  for (tool_calls::CallDelta& piece : *calls) {
    if (!piece.id.empty() || joined.empty()) {
      joined.push_back(std::move(piece));
    } else {
      joined.back().arguments += piece.arguments;
    }
  }
  *calls = std::move(joined);
}

}  // namespace

OutputChoice::OutputChoice(int index, const GenerationRequest* request, const ModelText* text,
                           const TokenizedPrompt* prompt)
    : index_(index),
      request_(request),
      model_text_(text),
      prompt_(prompt),
      legacy_logprobs_(NamingOf(*request, text)),
      chat_logprobs_(NamingOf(*request, text)) {
  if (text != nullptr) {
    text::OutputTextOptions options;
    options.stop = request->stop;
    options.include_stop = request->include_stop;
    options.skip_special = request->skip_special_tokens;
    options.min_tokens = request->min_tokens.value_or(0);
    output_.emplace(text->tokenizer.get(), options);
  }
}

void OutputChoice::BeginText() {
  begun_ = true;
  if (request_->echo) {
    delta_.content = prompt_->text;
    echoed_characters_ = text::CountCharacters(delta_.content);
  }
}

void OutputChoice::AddPromptLogprobs(const v1::GenerateResponse& response) {
  google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs> entries;
  const int missing = static_cast<int>(prompt_->tokens.size()) - response.prompt_logprobs_size();
  if (missing > 0) {  // the first token has none
    entries.Add();
  }
  entries.MergeFrom(response.prompt_logprobs());
  if (request_->endpoint == Endpoint::kGrpc) {
    raw_prompt_logprobs_.assign(entries.begin(), entries.end());
    return;
  }
  if (request_->prompt_logprobs) {
    prompt_logprobs_json_ = PromptLogprobsJson(NamingOf(*request_, model_text_), entries);
  }
  if (request_->echo && request_->logprobs) {
    AddPromptToLegacyLogprobs(entries);
    has_logprobs_ = true;
  }
}

void OutputChoice::AddPromptToLegacyLogprobs(
    const google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs>& entries) {
  std::optional<text::IncrementalDetokenizer> detokenizer;
  if (model_text_ != nullptr) {
    text::DetokenizerOptions options;
    options.skip_special = prompt_->skips_special;
    options.continuation = false;
    detokenizer.emplace(model_text_->tokenizer.get(), options);
  }
  int64_t characters = 0;
  for (size_t i = 0; i < prompt_->tokens.size(); ++i) {
    LegacyLogprobs::PromptToken token;
    token.id = prompt_->tokens[i];
    token.hidden = i == 0 && HasHiddenStart();
    // A tokenizer that normalizes may give other text back than it was given.
    token.offset = std::min(characters, echoed_characters_);
    token.logprobs =
        i < static_cast<size_t>(entries.size()) ? &entries.Get(static_cast<int>(i)) : nullptr;
    legacy_logprobs_.AddPrompt(token);
    if (detokenizer && !token.hidden) {
      characters += text::CountCharacters(detokenizer->Append(token.id));
    }
  }
}

bool OutputChoice::HasHiddenStart() const {
  if (model_text_ == nullptr) {
    return false;
  }
  const tokenizer::Tokenizer& tokenizer = *model_text_->tokenizer;
  const int32_t first = prompt_->tokens[0];
  return tokenizer.IsSpecial(first) && !prompt_->text.starts_with(tokenizer.TokenText(first));
}

void OutputChoice::Add(const v1::GenerateResponse& response) {
  if (finished()) {
    return;
  }
  if (!begun_) {
    BeginText();
  }
  if (response.prompt_logprobs_size() > 0 && !std::exchange(has_prompt_logprobs_, true)) {
    AddPromptLogprobs(response);
  }
  const bool ends_by_token = response.finish_reason() == v1::FINISH_REASON_STOP;
  const int count = request_->echo_only ? 0 : response.tokens_size();
  for (int i = 0; i < count; ++i) {
    const bool is_stop_token = ends_by_token && i + 1 == count;
    if (!AddToken(response.tokens(i), is_stop_token)) {
      return;
    }
  }
  if (response.has_usage()) {
    cached_tokens_ = std::max<int64_t>(0, response.usage().cached_prompt_tokens());
  }
  if (response.finish_reason() == v1::FINISH_REASON_STOP ||
      response.finish_reason() == v1::FINISH_REASON_LENGTH) {
    AddEnd(response);
  }
}

bool OutputChoice::AddToken(const v1::TokenOutput& token, bool is_stop_token) {
  ++completion_tokens_;
  reasoning_tokens_ += parser_ && parser_->in_reasoning() ? 1 : 0;
  sum_logprobs_ += static_cast<double>(token.chosen().logprob());
  token_ids_.push_back(token.token_id());
  if (request_->endpoint == Endpoint::kGrpc) {
    tokens_.push_back(token);
  }
  const bool shown = !is_stop_token || request_->include_stop;
  if (request_->logprobs && request_->endpoint == Endpoint::kCompletions) {
    legacy_logprobs_.Add(token, echoed_characters_ + (output_ ? output_->characters() : 0));
    has_logprobs_ = true;
  } else if (request_->logprobs && shown && request_->endpoint != Endpoint::kGrpc) {
    // Without the end token: the bytes of all entries are the bytes of the content.
    chat_logprobs_.Add(token);
    has_logprobs_ = true;
  }
  if (!output_ || !shown) {
    return true;
  }
  const text::OutputText::Emission emission = output_->AppendToken(token.token_id());
  AddText(emission.text);
  if (emission.finished) {
    EndByStopString();
  }
  return !emission.finished;
}

void OutputChoice::AddText(std::string_view text) {
  if (parser_) {
    parser_->Append(text, &delta_);
  } else {
    delta_.content += text;
  }
}

void OutputChoice::FinishText() {
  if (!parser_) {
    return;
  }
  parser_->Finish(&delta_);
  // As OpenAI has it: a call that was asked for by name is no reason of its own.
  if (finish_reason_ == "stop" && parser_->calls() > 0 &&
      request_->tools.choice != ToolChoice::kNamed) {
    finish_reason_ = "tool_calls";
  }
}

void OutputChoice::EndByStopString() {
  stopped_by_text_ = true;
  finish_reason_ = "stop";
  FinishText();
  stop_reason_json_.clear();
  if (output_->hit()) {
    AppendJsonString(*output_->hit(), &stop_reason_json_);
  }
}

void OutputChoice::AddEnd(const v1::GenerateResponse& response) {
  if (output_) {
    const text::OutputText::Emission emission = output_->Flush();
    AddText(emission.text);
    if (emission.finished) {
      EndByStopString();
      return;
    }
  }
  const bool stopped = response.finish_reason() == v1::FINISH_REASON_STOP && !request_->echo_only;
  finish_reason_ = stopped ? "stop" : "length";
  FinishText();
  if (!stopped) {
    return;
  }
  if (response.has_stop_token_id()) {
    stop_token_id_ = response.stop_token_id();
  }
  const auto& stops = request_->stop_token_ids;
  if (response.has_stop_token_id() &&
      std::find(stops.begin(), stops.end(), response.stop_token_id()) != stops.end()) {
    AppendJsonInt(response.stop_token_id(), &stop_reason_json_);
  }
}

bool OutputChoice::has_news() const {
  return !delta_.empty() || has_logprobs_ || finished() ||
         (request_->return_token_ids && !token_ids_.empty()) || !tokens_.empty();
}

ChoicePart OutputChoice::Take() {
  taken_ = std::exchange(delta_, {});
  taken_ids_ = std::exchange(token_ids_, {});
  ChoicePart part;
  part.index = index_;
  part.text = taken_.content;
  part.reasoning = taken_.reasoning;
  if (!request_->stream) {
    JoinCalls(&taken_.calls);
  }
  part.calls = taken_.calls;
  part.finish_reason = finish_reason_;
  part.stop_reason_json = stop_reason_json_;
  if (request_->logprobs && request_->endpoint != Endpoint::kGrpc &&
      (has_logprobs_ || !request_->stream)) {
    part.logprobs_json = request_->endpoint == Endpoint::kCompletions ? legacy_logprobs_.Take()
                                                                      : chat_logprobs_.Take();
    has_logprobs_ = false;
  }
  part.prompt_logprobs_json = prompt_logprobs_json_;
  if (request_->return_token_ids) {
    part.token_ids = taken_ids_;
    if (!first_taken_) {
      part.prompt_token_ids = prompt_->tokens;
    }
  }
  taken_tokens_ = std::exchange(tokens_, {});
  taken_prompt_logprobs_ = std::exchange(raw_prompt_logprobs_, {});
  part.tokens = taken_tokens_;
  part.prompt_logprobs = taken_prompt_logprobs_;
  part.stop_token_id = stop_token_id_;
  first_taken_ = true;
  return part;
}

}  // namespace tandem::router
