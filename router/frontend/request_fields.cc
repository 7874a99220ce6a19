#include "router/frontend/request_fields.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "router/frontend/field_readers.h"

namespace tandem::router {
namespace {

using Request = GenerationRequest;

constexpr unsigned kCompletion = 1u << static_cast<int>(Endpoint::kCompletions);
constexpr unsigned kChat = 1u << static_cast<int>(Endpoint::kChat);
constexpr unsigned kTokenize = 1u << static_cast<int>(Endpoint::kTokenize);
constexpr unsigned kDetokenize = 1u << static_cast<int>(Endpoint::kDetokenize);
constexpr unsigned kGenerate = kCompletion | kChat;
constexpr unsigned kTemplate = kChat | kTokenize;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

struct Integer {
  std::optional<int64_t> Request::*target;
  int64_t min, max;
};
struct Number {
  std::optional<double> Request::*target;
  double min, max;
  bool above_min = false;  // min itself is not allowed
};
struct Flag {
  bool Request::*target;
};
struct OptionalFlag {
  std::optional<bool> Request::*target;
};
// Anything else checks itself.
using Custom = ApiResult (*)(std::string_view name, const Json& value, Request* request);
// Known, and without an effect here.
struct Ignored {};
// Known, and not served: refused unless the value asks for nothing.
struct Refused {
  const char* message;
  bool (*harmless)(const Json& value, const Json& body);
};

struct Field {
  std::string_view name;
  unsigned endpoints;
  std::variant<Integer, Number, Flag, OptionalFlag, Custom, Ignored, Refused> kind;
};

std::string Range(int64_t min, int64_t max) {
  if (min == kMinInt64 && max == kMaxInt64) {
    return "an integer of 64 bits";
  }
  return max >= kMaxInt32 ? "an integer of at least " + std::to_string(min)
                          : "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

std::string ShortNumber(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

ApiResult ReadInteger(const Field& field, const Integer& kind, const Json& value,
                      Request* request) {
  const auto number = AsInteger(value);
  if (!number || *number < kind.min || *number > kind.max) {
    return WrongField(field.name, Range(kind.min, kind.max), value);
  }
  request->*kind.target = *number;
  return std::nullopt;
}

ApiResult ReadNumber(const Field& field, const Number& kind, const Json& value, Request* request) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= kind.min && number <= kind.max) || (kind.above_min && number <= kind.min)) {
    return WrongField(field.name,
                      "a number " + std::string(kind.above_min ? "above " : "from ") +
                          ShortNumber(kind.min) + (kind.above_min ? " and up to " : " to ") +
                          ShortNumber(kind.max),
                      value);
  }
  request->*kind.target = number;
  return std::nullopt;
}

bool IsNever(const Json&, const Json&) { return false; }
bool IsEmpty(const Json& value, const Json&) { return value.empty() || value == ""; }
bool IsFalse(const Json& value, const Json&) { return value == false; }
bool IsText(const Json& value, const Json&) {
  return value.is_object() && value.value("type", Json()) == "text";
}
bool IsTextModality(const Json& value, const Json&) { return value == Json::array({"text"}); }
bool IsNone(const Json& value, const Json&) { return value == "none" || value == "auto"; }
bool IsToolless(const Json& value, const Json& body) {
  const auto choice = body.find("tool_choice");
  return value == Json::array() || (value.is_array() && choice != body.end() && *choice == "none");
}

constexpr char kNoTools[] = "Tools are not supported by this server.";
constexpr char kNoStructure[] = "Structured output is not supported by this server.";

// Every field that we know. In the order in which they are named in errors.
const Field kFields[] = {
    {"model", kGenerate | kTokenize | kDetokenize, &ReadModel},
    {"prompt", kCompletion | kTokenize, &ReadPrompt},
    {"content", kTokenize, &ReadContent},
    {"messages", kTemplate, &ReadMessages},
    {"tokens", kDetokenize, &ReadTokens},
    {"n", kGenerate, Integer{&Request::n, 1, kMaxN}},
    {"best_of", kCompletion, Integer{&Request::best_of, 1, kMaxN}},
    {"max_tokens", kGenerate, Integer{&Request::max_tokens, 1, kMaxInt32}},
    {"max_completion_tokens", kChat, Integer{&Request::max_completion_tokens, 1, kMaxInt32}},
    {"min_tokens", kGenerate, Integer{&Request::min_tokens, 0, kMaxInt32}},
    {"temperature", kGenerate, Number{&Request::temperature, 0, 2}},
    {"top_p", kGenerate, Number{&Request::top_p, 0, 1, true}},
    {"top_k", kGenerate, Integer{&Request::top_k, -1, kMaxInt32}},
    {"min_p", kGenerate, Number{&Request::min_p, 0, 1}},
    {"repetition_penalty", kGenerate, Number{&Request::repetition_penalty, 0, 100, true}},
    {"presence_penalty", kGenerate, Number{&Request::presence_penalty, -2, 2}},
    {"frequency_penalty", kGenerate, Number{&Request::frequency_penalty, -2, 2}},
    {"seed", kGenerate, Integer{&Request::seed, kMinInt64, kMaxInt64}},
    {"logit_bias", kGenerate, &ReadLogitBias},
    {"stop", kGenerate, &ReadStop},
    {"stop_token_ids", kGenerate, &ReadStopTokens},
    {"ignore_eos", kGenerate, Flag{&Request::ignore_eos}},
    {"include_stop_str_in_output", kGenerate, Flag{&Request::include_stop}},
    {"skip_special_tokens", kGenerate, Flag{&Request::skip_special_tokens}},
    {"priority", kGenerate, Integer{&Request::priority, -kMaxInt32, kMaxInt32}},
    {"stream", kGenerate, Flag{&Request::stream}},
    {"stream_options", kGenerate, &ReadStreamOptions},
    {"echo", kCompletion, Flag{&Request::echo}},
    {"logprobs", kCompletion, Integer{&Request::logprobs, 0, kMaxTopLogprobs}},
    {"logprobs", kChat, Flag{&Request::chat_logprobs}},
    {"top_logprobs", kChat, Integer{&Request::top_logprobs, 0, kMaxTopLogprobs}},
    {"prompt_logprobs", kGenerate, Integer{&Request::prompt_logprobs, 0, kMaxTopLogprobs}},
    {"return_token_ids", kGenerate, Flag{&Request::return_token_ids}},
    {"return_tokens_as_token_ids", kGenerate, Flag{&Request::return_tokens_as_token_ids}},
    {"add_special_tokens", kGenerate | kTokenize, OptionalFlag{&Request::add_special_tokens}},
    {"add_generation_prompt", kTemplate, OptionalFlag{&Request::add_generation_prompt}},
    {"continue_final_message", kTemplate, Flag{&Request::continue_final_message}},
    {"chat_template_kwargs", kTemplate, &ReadTemplateVariables},
    {"enable_thinking", kTemplate, &ReadEnableThinking},
    {"tools", kTokenize, &ReadTools},
    {"return_token_strs", kTokenize, Flag{&Request::return_token_strings}},
    // Known and refused.
    {"suffix", kCompletion, Refused{"`suffix` is not supported.", &IsEmpty}},
    {"tools", kChat, Refused{kNoTools, &IsToolless}},
    {"tool_choice", kChat, Refused{kNoTools, &IsNone}},
    {"functions", kChat, Refused{kNoTools, &IsEmpty}},
    {"function_call", kChat, Refused{kNoTools, &IsNone}},
    {"response_format", kGenerate, Refused{kNoStructure, &IsText}},
    {"structured_outputs", kGenerate, Refused{kNoStructure, &IsEmpty}},
    {"guided_json", kGenerate, Refused{kNoStructure, &IsNever}},
    {"guided_regex", kGenerate, Refused{kNoStructure, &IsNever}},
    {"guided_choice", kGenerate, Refused{kNoStructure, &IsNever}},
    {"guided_grammar", kGenerate, Refused{kNoStructure, &IsNever}},
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
    // Known, without an effect here.
    {"user", kGenerate, Ignored{}},
    {"metadata", kGenerate, Ignored{}},
    {"store", kGenerate, Ignored{}},
    {"service_tier", kGenerate, Ignored{}},
    {"safety_identifier", kGenerate, Ignored{}},
    {"prompt_cache_key", kGenerate, Ignored{}},
    {"prediction", kChat, Ignored{}},
    {"parallel_tool_calls", kChat, Ignored{}},
    {"reasoning_effort", kChat, Ignored{}},
    {"verbosity", kChat, Ignored{}},
    {"spaces_between_special_tokens", kGenerate, Ignored{}},
    {"request_id", kGenerate, Ignored{}},
};

ApiResult ReadField(const Field& field, const Json& value, const Json& body, Request* request) {
  if (const auto* integer = std::get_if<Integer>(&field.kind)) {
    return ReadInteger(field, *integer, value, request);
  }
  if (const auto* number = std::get_if<Number>(&field.kind)) {
    return ReadNumber(field, *number, value, request);
  }
  if (const auto* custom = std::get_if<Custom>(&field.kind)) {
    return (*custom)(field.name, value, request);
  }
  if (const auto* refused = std::get_if<Refused>(&field.kind)) {
    return refused->harmless(value, body)
               ? ApiResult()
               : InvalidRequest(refused->message, std::string(field.name), "unsupported_parameter");
  }
  const auto* flag = std::get_if<Flag>(&field.kind);
  const auto* optional_flag = std::get_if<OptionalFlag>(&field.kind);
  if (flag == nullptr && optional_flag == nullptr) {
    return std::nullopt;
  }
  if (!value.is_boolean()) {
    return WrongField(field.name, "true or false", value);
  }
  if (flag != nullptr) {
    request->*flag->target = value.get<bool>();
  } else {
    request->*optional_flag->target = value.get<bool>();
  }
  return std::nullopt;
}

ApiResult CheckGeneration(Request* request) {
  const bool chat = request->endpoint == Endpoint::kChat;
  const int64_t n = request->n.value_or(1);
  if (request->best_of && *request->best_of != n) {
    return InvalidRequest("`best_of` is supported only where it equals `n`.", "best_of");
  }
  if (static_cast<int64_t>(request->prompts.size()) * n > kMaxChoices) {
    return InvalidRequest(
        "The number of prompts times `n` is over " + std::to_string(kMaxChoices) + ".", "n");
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
  if (request->max_tokens && request->min_tokens.value_or(0) > *request->max_tokens) {
    return InvalidRequest("`min_tokens` is larger than `max_tokens`.", "min_tokens");
  }
  if (chat && request->top_logprobs.value_or(0) > 0 && !request->chat_logprobs) {
    return InvalidRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs");
  }
  if (chat && request->chat_logprobs) {
    request->logprobs = request->top_logprobs.value_or(0);
  }
  return std::nullopt;
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
    case Endpoint::kDetokenize:
      return request->has_tokens ? ApiResult() : InvalidRequest("`tokens` is missing.", "tokens");
  }
  return std::nullopt;
}

}  // namespace

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
  return CheckTogether(request);
}

}  // namespace tandem::router
