#include "router/frontend/output_choice.h"

#include <algorithm>
#include <utility>

namespace tandem::router {
namespace {

TokenNaming NamingOf(const GenerationRequest& request, const ModelText* text) {
  return {text != nullptr ? text->tokenizer.get() : nullptr, request.return_tokens_as_token_ids};
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
    text_ = prompt_->text;
    echoed_characters_ = text::CountCharacters(text_);
  }
}

void OutputChoice::AddPromptLogprobs(const v1::GenerateResponse& response) {
  google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs> entries;
  const int missing = static_cast<int>(prompt_->tokens.size()) - response.prompt_logprobs_size();
  if (missing > 0) {  // the first token has none
    entries.Add();
  }
  entries.MergeFrom(response.prompt_logprobs());
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
  for (int i = 0; i < response.tokens_size(); ++i) {
    const bool is_stop_token = ends_by_token && i + 1 == response.tokens_size();
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
  token_ids_.push_back(token.token_id());
  const bool shown = !is_stop_token || request_->include_stop;
  if (request_->logprobs && request_->endpoint == Endpoint::kCompletions) {
    legacy_logprobs_.Add(token, echoed_characters_ + (output_ ? output_->characters() : 0));
    has_logprobs_ = true;
  } else if (request_->logprobs && shown) {
    // Without the end token: the bytes of all entries are the bytes of the content.
    chat_logprobs_.Add(token);
    has_logprobs_ = true;
  }
  if (!output_ || !shown) {
    return true;
  }
  const text::OutputText::Emission emission = output_->AppendToken(token.token_id());
  text_ += emission.text;
  if (emission.finished) {
    EndByStopString();
  }
  return !emission.finished;
}

void OutputChoice::EndByStopString() {
  stopped_by_text_ = true;
  finish_reason_ = "stop";
  stop_reason_json_.clear();
  if (output_->hit()) {
    AppendJsonString(*output_->hit(), &stop_reason_json_);
  }
}

void OutputChoice::AddEnd(const v1::GenerateResponse& response) {
  if (output_) {
    const text::OutputText::Emission emission = output_->Flush();
    text_ += emission.text;
    if (emission.finished) {
      EndByStopString();
      return;
    }
  }
  finish_reason_ = response.finish_reason() == v1::FINISH_REASON_STOP ? "stop" : "length";
  const auto& stops = request_->stop_token_ids;
  if (response.has_stop_token_id() &&
      std::find(stops.begin(), stops.end(), response.stop_token_id()) != stops.end()) {
    AppendJsonInt(response.stop_token_id(), &stop_reason_json_);
  }
}

bool OutputChoice::has_news() const {
  return !text_.empty() || has_logprobs_ || finished() ||
         (request_->return_token_ids && !token_ids_.empty());
}

ChoicePart OutputChoice::Take() {
  taken_text_ = std::exchange(text_, {});
  taken_ids_ = std::exchange(token_ids_, {});
  ChoicePart part;
  part.index = index_;
  part.text = taken_text_;
  part.finish_reason = finish_reason_;
  part.stop_reason_json = stop_reason_json_;
  if (request_->logprobs && (has_logprobs_ || !request_->stream)) {
    part.logprobs_json = request_->endpoint == Endpoint::kCompletions ? legacy_logprobs_.Take()
                                                                      : chat_logprobs_.Take();
    has_logprobs_ = false;
  }
  const bool completions = request_->endpoint == Endpoint::kCompletions;
  if (completions) {
    part.prompt_logprobs_json = prompt_logprobs_json_;
  }
  if (request_->return_token_ids) {
    part.token_ids = taken_ids_;
    if (completions && !first_taken_) {
      part.prompt_token_ids = prompt_->tokens;
    }
  }
  first_taken_ = true;
  return part;
}

}  // namespace tandem::router
