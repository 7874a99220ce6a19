#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "router/frontend/generation_request.h"
#include "router/frontend/logprobs.h"
#include "router/frontend/model_text.h"
#include "router/frontend/prompts.h"
#include "router/frontend/response_format.h"
#include "router/frontend/text/output_text.h"
#include "router/frontend/tool_calls/output_parser.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::router {

// One output sequence on its way from a worker's messages to the client: text, stop strings,
// logprobs, token ids, counts. Parts collect until they are taken: chunk by chunk in a stream, once
// at the end otherwise. Not thread-safe; request, text and prompt outlive it.
class OutputChoice {
 public:
  OutputChoice(int index, const GenerationRequest* request, const ModelText* text,
               const TokenizedPrompt* prompt);

  // Takes the text apart from now on; before the first Add.
  void set_parser(tool_calls::OutputParserOptions options) { parser_.emplace(std::move(options)); }
  // A message from the worker. After finished() nothing more is added.
  void Add(const v1::GenerateResponse& response);

  bool finished() const { return !finish_reason_.empty(); }
  // A stop string ended it: the worker goes on until it is told.
  bool stopped_by_text() const { return stopped_by_text_; }
  // What there is to tell, beyond the end itself.
  bool has_news() const;
  // What was added since the last call; valid until the next Add.
  ChoicePart Take();

  int index() const { return index_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  // Mean logprob of the tokens; only with logprobs.
  double mean_logprob() const {
    return sum_logprobs_ / static_cast<double>(std::max<int64_t>(1, completion_tokens_));
  }
  const TokenizedPrompt& prompt() const { return *prompt_; }

 private:
  void AddPromptLogprobs(const v1::GenerateResponse& response);
  void AddPromptToLegacyLogprobs(
      const google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs>& entries);
  // The tokenizer put a BOS before the text.
  bool HasHiddenStart() const;
  // Returns false when a stop string ended the sequence.
  bool AddToken(const v1::TokenOutput& token, bool is_stop_token);
  void AddEnd(const v1::GenerateResponse& response);
  void BeginText();
  void EndByStopString();
  void AddText(std::string_view text);
  // After the last text.
  void FinishText();

  const int index_;
  const GenerationRequest* const request_;
  const ModelText* const model_text_;
  const TokenizedPrompt* const prompt_;
  std::optional<text::OutputText> output_;
  LegacyLogprobs legacy_logprobs_;
  ChatLogprobs chat_logprobs_;
  bool begun_ = false;
  int64_t echoed_characters_ = 0;
  bool has_prompt_logprobs_ = false;
  bool first_taken_ = false;
  bool has_logprobs_ = false;  // something to take
  std::optional<tool_calls::OutputParser> parser_;
  tool_calls::OutputDelta delta_;
  tool_calls::OutputDelta taken_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> taken_ids_;
  std::string prompt_logprobs_json_;
  // For gRPC: messages as they came.
  std::vector<v1::TokenOutput> tokens_, taken_tokens_;
  std::vector<v1::PromptTokenLogprobs> raw_prompt_logprobs_, taken_prompt_logprobs_;
  std::optional<int32_t> stop_token_id_;
  std::string finish_reason_;
  std::string stop_reason_json_;
  bool stopped_by_text_ = false;
  int64_t completion_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  double sum_logprobs_ = 0;
};

}  // namespace tandem::router
