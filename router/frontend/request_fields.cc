#include "router/frontend/request_fields.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "router/frontend/endpoints/messages_fields.h"
#include "router/frontend/endpoints/responses_fields.h"
#include "router/frontend/field_readers.h"
#include "router/frontend/field_table.h"
#include "router/frontend/grammar_fields.h"
#include "router/frontend/tools.h"

namespace tandem::router {
namespace {

using Request = GenerationRequest;

constexpr unsigned kCompletion = EndpointBit(Endpoint::kCompletions);
constexpr unsigned kChat = EndpointBit(Endpoint::kChat);
constexpr unsigned kResponses = EndpointBit(Endpoint::kResponses);
constexpr unsigned kMessages = EndpointBit(Endpoint::kMessages);
constexpr unsigned kTokenize = EndpointBit(Endpoint::kTokenize);
constexpr unsigned kDetokenize = EndpointBit(Endpoint::kDetokenize);
constexpr unsigned kGenerate = kCompletion | kChat;
constexpr unsigned kAll = kGenerate | kResponses | kMessages;
constexpr unsigned kTemplate = kChat | kTokenize;
constexpr unsigned kMessage = kChat | kResponses | kMessages;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool IsNever(const Json&, const Json&) { return false; }
bool IsEmpty(const Json& value, const Json&) {
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}
bool IsFalse(const Json& value, const Json&) { return value == false; }
bool IsTextModality(const Json& value, const Json&) { return value == Json::array({"text"}); }
bool IsDisabled(const Json& value, const Json&) { return value == "disabled"; }
bool IsNone(const Json& value, const Json&) { return value == "none" || value == "auto"; }

bool IsFlag(const Json& value) { return value.is_boolean(); }
bool IsString(const Json& value) { return value.is_string(); }
bool IsObject(const Json& value) { return value.is_object(); }
bool IsTier(const Json& value) {
  static const Json kTiers = {"auto", "default", "flex", "priority", "scale", "standard_only"};
  return std::find(kTiers.begin(), kTiers.end(), value) != kTiers.end();
}
// OpenAI's bounds.
bool IsMetadata(const Json& value) {
  return value.is_object() && value.size() <= 16 &&
         std::all_of(value.items().begin(), value.items().end(), [](const auto& item) {
           return item.key().size() <= 64 && item.value().is_string() &&
                  item.value().template get_ref<const std::string&>().size() <= 512;
         });
}
constexpr Ignored kText{"a string", &IsString};
constexpr Ignored kFlag{"true or false", &IsFlag};
constexpr Ignored kMetadata{
    "an object of at most 16 strings of at most 512 bytes, with names of at most 64", &IsMetadata};
constexpr Ignored kTier{"one of \"auto\", \"default\", \"flex\" and \"priority\"", &IsTier};

constexpr char kNoFunctions[] = "`functions` is OpenAI's older form; send `tools` instead.";

// Every field that we know. In the order in which they are named in errors.
const Field kFields[] = {
    {"model", kAll | kTokenize | kDetokenize, &ReadModel},
    {"prompt", kCompletion | kTokenize, &ReadPrompt},
    {"content", kTokenize, &ReadContent},
    {"messages", kTemplate, &ReadMessages},
    {"messages", kMessages, &ReadTurns},
    {"system", kMessages, &ReadSystem},
    {"instructions", kResponses, &ReadInstructions},
    {"input", kResponses, &ReadInput},
    {"tokens", kDetokenize, &ReadTokens},
    {"n", kGenerate, Integer{&Request::n, 1, kMaxN}},
    {"best_of", kCompletion, Integer{&Request::best_of, 1, kMaxN}},
    {"max_tokens", kCompletion, Integer{&Request::max_tokens, 0, kMaxInt32}},
    {"max_tokens", kChat | kMessages, Integer{&Request::max_tokens, 1, kMaxInt32}},
    {"max_completion_tokens", kChat, Integer{&Request::max_completion_tokens, 1, kMaxInt32}},
    {"max_output_tokens", kResponses, Integer{&Request::max_tokens, 1, kMaxInt32}},
    {"min_tokens", kAll, Integer{&Request::min_tokens, 0, kMaxInt32}},
    {"temperature", kAll, Number{&Request::temperature, 0, 2}},
    {"top_p", kAll, Number{&Request::top_p, 0, 1, true}},
    {"top_k", kAll, Integer{&Request::top_k, -1, kMaxInt32}},
    {"min_p", kAll, Number{&Request::min_p, 0, 1}},
    {"repetition_penalty", kAll, Number{&Request::repetition_penalty, 0, 100, true}},
    {"presence_penalty", kAll, Number{&Request::presence_penalty, -2, 2}},
    {"frequency_penalty", kAll, Number{&Request::frequency_penalty, -2, 2}},
    {"seed", kAll, Integer{&Request::seed, kMinInt64, kMaxInt64}},
    {"logit_bias", kAll, &ReadLogitBias},
    {"stop", kGenerate | kResponses, &ReadStop},
    {"stop_token_ids", kAll, &ReadStopTokens},
    {"ignore_eos", kAll, Flag{&Request::ignore_eos}},
    {"include_stop_str_in_output", kAll, Flag{&Request::include_stop}},
    {"skip_special_tokens", kAll, Flag{&Request::skip_special_tokens}},
    {"priority", kAll, Integer{&Request::priority, -kMaxInt32, kMaxInt32}},
    {"stream", kAll, Flag{&Request::stream}},
    {"stream_options", kGenerate, &ReadStreamOptions},
    {"echo", kCompletion, Flag{&Request::echo}},
    {"logprobs", kCompletion, Integer{&Request::logprobs, 0, kMaxTopLogprobs}},
    {"logprobs", kChat, Flag{&Request::chat_logprobs}},
    {"top_logprobs", kChat | kResponses, Integer{&Request::top_logprobs, 0, kMaxTopLogprobs}},
    {"prompt_logprobs", kGenerate, Integer{&Request::prompt_logprobs, 0, kMaxTopLogprobs}},
    {"return_token_ids", kGenerate, Flag{&Request::return_token_ids}},
    {"return_tokens_as_token_ids", kGenerate, Flag{&Request::return_tokens_as_token_ids}},
    {"add_special_tokens", kGenerate | kTokenize, OptionalFlag{&Request::add_special_tokens}},
    {"add_generation_prompt", kTemplate, OptionalFlag{&Request::add_generation_prompt}},
    {"continue_final_message", kTemplate, Flag{&Request::continue_final_message}},
    {"chat_template_kwargs", kTemplate | kResponses | kMessages, &ReadTemplateVariables},
    {"enable_thinking", kTemplate | kResponses | kMessages, &ReadEnableThinking},
    {"tools", kTemplate, &ReadChatTools},
    {"tools", kResponses, &ReadFlatTools},
    {"tools", kMessages, &ReadMessagesTools},
    {"tool_choice", kChat, &ReadChatToolChoice},
    {"tool_choice", kResponses, &ReadFlatToolChoice},
    {"tool_choice", kMessages, &ReadMessagesToolChoice},
    {"parallel_tool_calls", kChat | kResponses, &ReadParallelToolCalls},
    {"include_reasoning", kMessage, Flag{&Request::include_reasoning}},
    {"reasoning_effort", kChat, &ReadReasoningEffort},
    {"reasoning", kResponses, &ReadReasoning},
    {"thinking", kMessages, &ReadThinking},
    {"stop_sequences", kMessages, &ReadStop},
    {"include", kResponses, &ReadInclude},
    {"response_format", kGenerate, &ReadResponseFormat},
    {"text", kResponses, &ReadTextFormat},
    {"output_format", kMessages, &ReadResponseFormat},
    {"output_config", kMessages, &ReadOutputConfig},
    {"structured_outputs", kAll, &ReadStructuredOutputs},
    {"guided_json", kGenerate, &ReadGuided},
    {"guided_regex", kGenerate, &ReadGuided},
    {"guided_choice", kGenerate, &ReadGuided},
    {"guided_grammar", kGenerate, &ReadGuided},
    {"return_token_strs", kTokenize, Flag{&Request::return_token_strings}},
    // Known and refused.
    {"suffix", kCompletion,
     Refused{"`suffix`, a text behind the completion, is not supported; leave it out.", &IsEmpty}},
    {"functions", kChat, Refused{kNoFunctions, &IsEmpty}},
    {"function_call", kChat, Refused{kNoFunctions, &IsNone}},
    {"guided_whitespace_pattern", kGenerate,
     Refused{"`guided_whitespace_pattern` is not supported.", &IsNever}},
    {"audio", kChat, Refused{"Audio is not supported.", &IsNever}},
    {"modalities", kChat, Refused{"Only the modality \"text\" is supported.", &IsTextModality}},
    {"web_search_options", kChat, Refused{"Web search is not supported.", &IsNever}},
    {"chat_template", kTemplate,
     Refused{"A chat template in the request is not allowed.", &IsNever}},
    {"documents", kTemplate, Refused{"Documents are not supported.", &IsEmpty}},
    {"use_beam_search", kGenerate, Refused{"Beam search is not supported.", &IsFalse}},
    {"bad_words", kGenerate, Refused{"`bad_words` is not supported.", &IsEmpty}},
    {"allowed_token_ids", kGenerate, Refused{"`allowed_token_ids` is not supported.", &IsNever}},
    {"truncate_prompt_tokens", kGenerate,
     Refused{"`truncate_prompt_tokens` is not supported.", &IsNever}},
    {"prompt_embeds", kCompletion, Refused{"`prompt_embeds` is not supported.", &IsNever}},
    {"store", kResponses,
     Refused{"Responses are not stored; leave `store` out or set it to false.", &IsFalse}},
    {"background", kResponses, Refused{"Responses in the background are not supported.", &IsFalse}},
    {"previous_response_id", kResponses,
     Refused{"Responses are not stored; send the conversation in `input`.", &IsNever}},
    {"conversation", kResponses,
     Refused{"Conversations are not stored; send them in `input`.", &IsNever}},
    {"prompt", kResponses, Refused{"Stored prompts are not supported.", &IsNever}},
    {"truncation", kResponses,
     Refused{"Only the `truncation` \"disabled\" is supported.", &IsDisabled}},
    {"mcp_servers", kMessages, Refused{"MCP servers are not supported.", &IsEmpty}},
    {"container", kMessages, Refused{"Containers are not supported.", &IsNever}},
    // Known, without an effect here.
    {"user", kAll, kText},
    {"metadata", kGenerate | kResponses, kMetadata},
    {"metadata", kMessages, Ignored{"an object", &IsObject}},
    {"store", kGenerate, kFlag},
    {"service_tier", kAll, kTier},
    {"safety_identifier", kGenerate | kResponses, kText},
    {"prompt_cache_key", kGenerate | kResponses, kText},
    {"prompt_cache_retention", kGenerate | kResponses, kText},
    {"prediction", kChat, Ignored{"an object", &IsObject}},
    {"verbosity", kChat, kText},
    {"max_tool_calls", kResponses, Ignored{}},
    {"stream_options", kResponses, Ignored{"an object", &IsObject}},
    {"context_management", kResponses | kMessages, Ignored{}},
    {"spaces_between_special_tokens", kGenerate, kFlag},
    {"request_id", kAll, kText},
    {"guided_decoding_backend", kGenerate, kText},
};

// As vLLM reads them.
ApiResult ReadSpecialValues(Request* request) {
  constexpr int64_t kAnySeed = -1;
  if (request->seed == kAnySeed) {
    request->seed.reset();
  }
  if (request->max_tokens == 0) {
    if (!request->echo) {
      return InvalidRequest("`max_tokens` may be 0 only with `echo`.", "max_tokens");
    }
    request->max_tokens = 1;
    request->echo_only = true;
  }
  return std::nullopt;
}

ApiResult CheckGeneration(Request* request) {
  if (ApiResult error = ReadSpecialValues(request)) {
    return error;
  }
  const bool chat = IsChat(request->endpoint);
  const int64_t n = request->n.value_or(1);
  if (request->best_of && *request->best_of < n) {
    return InvalidRequest("`best_of` must be at least `n`.", "best_of");
  }
  if (request->best_of && *request->best_of > n && request->stream) {
    return InvalidRequest("`best_of` above `n` is not available with `stream`.", "best_of");
  }
  if (static_cast<int64_t>(request->prompts.size()) * SamplesPerPrompt(*request) > kMaxChoices) {
    return InvalidRequest("The number of prompts times `n` (or `best_of`) is over " +
                              std::to_string(kMaxChoices) + ".",
                          request->best_of ? "best_of" : "n");
  }
  if (request->has_stream_options && !request->stream) {
    return InvalidRequest("`stream_options` is allowed only with `stream`.", "stream_options");
  }
  if (request->prompt_logprobs && request->stream) {
    return InvalidRequest("`prompt_logprobs` is not available with `stream`.", "prompt_logprobs");
  }
  if (request->max_completion_tokens) {
    request->max_tokens = request->max_completion_tokens;
  }
  if (IsChat(request->endpoint)) {
    if (ApiResult error = CheckTools(request)) {
      return error;
    }
  }
  if (request->max_tokens && request->min_tokens.value_or(0) > *request->max_tokens) {
    return InvalidRequest("`min_tokens` is larger than `max_tokens`.", "min_tokens");
  }
  if (request->endpoint == Endpoint::kChat && request->top_logprobs.value_or(0) > 0 &&
      !request->chat_logprobs) {
    return InvalidRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs");
  }
  if (chat && request->chat_logprobs) {
    request->logprobs = request->top_logprobs.value_or(0);
  }
  return std::nullopt;
}

// The system message that came in a field of its own goes in front.
ApiResult CheckMessages(Request* request, const char* param) {
  if (request->messages.is_null()) {
    return InvalidRequest("`" + std::string(param) + "` is missing.", param);
  }
  if (!request->system.empty()) {
    request->messages.insert(request->messages.begin(),
                             Json{{"role", "system"}, {"content", request->system}});
  }
  return CheckGeneration(request);
}

ApiResult CheckTogether(Request* request) {
  static constexpr char kGenerationPrompt[] = "add_generation_prompt";
  if (const auto it = request->template_variables.find(kGenerationPrompt);
      it != request->template_variables.end() && !it->is_null() &&
      !request->add_generation_prompt) {
    if (!it->is_boolean()) {
      return WrongField(std::string("chat_template_kwargs.") + kGenerationPrompt, "true or false",
                        *it);
    }
    request->add_generation_prompt = it->get<bool>();
  }
  if (request->continue_final_message && request->add_generation_prompt.value_or(false)) {
    return InvalidRequest(
        "`continue_final_message` and `add_generation_prompt` exclude each other.",
        "continue_final_message");
  }
  switch (request->endpoint) {
    case Endpoint::kCompletions:
      if (request->prompts.empty()) {
        return InvalidRequest("`prompt` is missing.", "prompt");
      }
      return CheckGeneration(request);
    case Endpoint::kChat:
      if (request->messages.is_null()) {
        return InvalidRequest("`messages` is missing.", "messages");
      }
      return CheckGeneration(request);
    case Endpoint::kResponses:
      return CheckMessages(request, "input");
    case Endpoint::kMessages:
      if (!request->max_tokens) {
        return InvalidRequest("`max_tokens` is missing.", "max_tokens");
      }
      return CheckMessages(request, "messages");
    case Endpoint::kTokenize:
      if (request->prompts.empty() == request->messages.is_null()) {
        return InvalidRequest("Either `prompt` or `messages` is needed.", "prompt");
      }
      if (request->prompts.size() > 1 ||
          (!request->prompts.empty() &&
           !std::holds_alternative<std::string>(request->prompts[0]))) {
        return InvalidRequest("`prompt` must be a string.", "prompt");
      }
      return std::nullopt;
    case Endpoint::kGrpc:  // read as completions
      return std::nullopt;
    case Endpoint::kDetokenize:
      return request->has_tokens ? ApiResult() : InvalidRequest("`tokens` is missing.", "tokens");
  }
  return std::nullopt;
}

// A response of /v1/responses repeats these.
constexpr const char* kRepeatedFields[] = {"instructions",
                                           "max_output_tokens",
                                           "max_tool_calls",
                                           "metadata",
                                           "parallel_tool_calls",
                                           "reasoning",
                                           "text",
                                           "temperature",
                                           "top_p",
                                           "top_logprobs",
                                           "tool_choice",
                                           "tools",
                                           "service_tier",
                                           "user",
                                           "safety_identifier",
                                           "prompt_cache_key"};

}  // namespace

std::span<const Field> AllFields() { return kFields; }

ApiResult ReadRequest(const Json& body, GenerationRequest* request,
                      const std::function<void(std::string_view)>& on_unknown) {
  if (!body.is_object()) {
    return InvalidRequest("The request's body must be a JSON object.");
  }
  const unsigned endpoint = 1u << static_cast<int>(request->endpoint);
  // Fields of other endpoints are known as well, and no reason for a warning.
  static const auto* const kKnown = [] {
    auto* names = new std::unordered_map<std::string_view, bool>();
    for (const Field& field : kFields) {
      names->emplace(field.name, true);
    }
    return names;
  }();
  std::unordered_map<std::string_view, const Json*> given;
  for (const auto& [name, value] : body.items()) {
    if (!kKnown->contains(name)) {
      on_unknown(name);
    } else if (!value.is_null()) {
      given.emplace(name, &value);
    }
  }
  for (const Field& field : kFields) {
    const auto it = (field.endpoints & endpoint) != 0 ? given.find(field.name) : given.end();
    if (it == given.end()) {
      continue;
    }
    if (ApiResult error = ReadField(field, *it->second, body, request)) {
      return error;
    }
  }
  if (request->endpoint == Endpoint::kResponses) {
    for (const char* name : kRepeatedFields) {
      if (const auto it = given.find(name); it != given.end()) {
        request->repeated[name] = *it->second;
      }
    }
  }
  return CheckTogether(request);
}

}  // namespace tandem::router
