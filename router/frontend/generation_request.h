#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/structured_output/grammar_spec.h"
#include "router/frontend/json_text.h"

namespace tandem::router {

enum class Endpoint { kCompletions, kChat, kResponses, kMessages, kGrpc, kTokenize, kDetokenize };

// Endpoints that answer messages with a message.
inline bool IsChat(Endpoint endpoint) {
  return endpoint == Endpoint::kChat || endpoint == Endpoint::kResponses ||
         endpoint == Endpoint::kMessages;
}

// A prompt as it came: text, or token ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

// A function that the model may call.
struct ToolSpec {
  std::string name;
  Json parameters;  // a JSON schema
  bool strict = false;
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct ToolRequest {
  std::vector<ToolSpec> tools;  // those that may be called
  Json shown;                   // as templates want them, OpenAI's form; null: none
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;
  bool parallel = true;

  bool active() const { return !tools.empty() && choice != ToolChoice::kNone; }
  bool enforced() const {
    return active() && (choice == ToolChoice::kRequired || choice == ToolChoice::kNamed);
  }
};

// The body of a request, checked field by field but not yet against a model. Fields that one
// endpoint lacks keep their defaults there.
struct GenerationRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;  // empty: the only one there is

  std::vector<Prompt> prompts;               // completions, tokenize
  Json messages;                             // chats, tokenize: an array, or null
  std::string system;                        // of a field beside the messages
  Json template_variables = Json::object();  // chat_template_kwargs
  std::optional<bool> add_generation_prompt;
  bool continue_final_message = false;
  std::optional<bool> add_special_tokens;
  std::vector<int32_t> tokens;  // detokenize
  bool has_tokens = false;
  bool return_token_strings = false;  // tokenize

  std::optional<structured_output::GrammarSpec> grammar;  // of the output

  std::optional<int64_t> n;
  std::optional<int64_t> best_of;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  std::optional<int64_t> min_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int64_t> seed;
  std::map<int32_t, float> logit_bias;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;
  bool skip_special_tokens = true;
  std::optional<int64_t> priority;
  ToolRequest tools;
  bool include_reasoning = true;

  int64_t deadline_unix_us = 0;  // 0: none

  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool echo_only =
      false;  // max_tokens is 0: one token is made, for the prompt's logprobs, and dropped
  // Number of top logprobs per token, 0: the chosen one only. Chat: from logprobs and top_logprobs.
  std::optional<int64_t> logprobs;
  bool chat_logprobs = false;
  std::optional<int64_t> top_logprobs;
  std::optional<int64_t> prompt_logprobs;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  // Members of the request that a response of /v1/responses repeats, by name.
  Json repeated = Json::object();
};

// Sequences that are generated for each prompt.
inline int64_t SamplesPerPrompt(const GenerationRequest& request) {
  return request.best_of.value_or(request.n.value_or(1));
}

}  // namespace tandem::router
