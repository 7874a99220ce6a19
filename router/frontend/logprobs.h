#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/tokenizer/tokenizer.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::router {

// How tokens are named in logprobs.
struct TokenNaming {
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: by id only
  bool as_token_ids = false;                        // "token_id:N"
};

// Appends the JSON string that names a token: its text, or `bytes:\x..` where that is no whole
// UTF-8.
void AppendTokenName(const TokenNaming& naming, int32_t id, std::string* out);

// OpenAI's logprobs of completions: {tokens, token_logprobs, top_logprobs, text_offset}, token by
// token. A token's offset is the number of characters of the text that were complete before it: the
// tokens of one character all have that character's. Not thread-safe.
class LegacyLogprobs {
 public:
  explicit LegacyLogprobs(TokenNaming naming) : naming_(naming) {}

  void Add(const v1::TokenOutput& token, int64_t offset);

  struct PromptToken {
    int32_t id = 0;
    bool hidden = false;  // no part of the prompt's text
    int64_t offset = 0;
    const v1::PromptTokenLogprobs* logprobs = nullptr;  // the first token has none
  };
  // For echo.
  void AddPrompt(const PromptToken& token);
  // What was added since the last Take, as JSON.
  std::string Take();

 private:
  void AddName(int32_t id, bool hidden, int64_t offset);
  void AddValues(const v1::TokenLogprob* chosen,
                 const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tops);

  TokenNaming naming_;
  std::string tokens_, token_logprobs_, top_logprobs_, text_offsets_;
};

// OpenAI's logprobs of chats: {content: [{token, logprob, bytes, top_logprobs}]}.
class ChatLogprobs {
 public:
  explicit ChatLogprobs(TokenNaming naming) : naming_(naming) {}

  void Add(const v1::TokenOutput& token);
  std::string Take();

 private:
  void AppendEntry(const v1::TokenLogprob& entry);

  TokenNaming naming_;
  std::string content_;
};

// vLLM's prompt_logprobs: a list, null for the first token, else an object from token id to
// {logprob, rank, decoded_token}, the prompt's own token first. `prompt_logprobs` begins with the
// first token's empty entry.
std::string PromptLogprobsJson(
    const TokenNaming& naming,
    const google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs>& prompt_logprobs);

}  // namespace tandem::router
