#include "router/frontend/field_readers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_messages.h"
#include "router/frontend/request_fields.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxModelNameBytes = 1024;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxStopTokens = 1024;

// A list of token ids; what lies inside the vocabulary is checked later.
ApiResult ReadTokenIds(std::string_view name, const Json& value, std::vector<int32_t>* ids) {
  ids->clear();
  ids->reserve(value.size());
  for (const Json& entry : value) {
    const auto id = AsInteger(entry);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return WrongField(name, "a list of token ids (integers of at least 0)", entry);
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
  return std::nullopt;
}

}  // namespace

ApiError WrongField(std::string_view name, const std::string& expected, const Json& value) {
  return InvalidRequest(
      base::StrCat("`", name, "` must be ", expected, ", not ", Brief(value), "."),
      std::string(name));
}

std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? std::optional<int64_t>(number)
               : std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::trunc(number) == number && std::fabs(number) <= kExact) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

ApiResult ReadModel(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxModelNameBytes) {
    return WrongField(name, "a model's name", value);
  }
  request->model = value.get<std::string>();
  return std::nullopt;
}

ApiResult ReadPrompt(std::string_view name, const Json& value, GenerationRequest* request) {
  static constexpr char kExpected[] =
      "a string, a list of strings, a list of token ids, or a list of such lists";
  request->prompts.clear();
  if (value.is_string()) {
    request->prompts.emplace_back(value.get<std::string>());
    return std::nullopt;
  }
  if (!value.is_array() || value.empty()) {
    return WrongField(name, base::StrCat(kExpected, value.is_array() ? " that is not empty" : ""),
                      value);
  }
  if (value[0].is_number()) {
    return ReadTokenIds(name, value,
                        &std::get<1>(request->prompts.emplace_back(std::vector<int32_t>())));
  }
  if (value.size() > static_cast<size_t>(kMaxChoices)) {
    return InvalidRequest(base::StrCat("`prompt` has ", value.size(), " entries; at most ",
                                       kMaxChoices, " are allowed."),
                          std::string(name));
  }
  for (const Json& entry : value) {
    if (entry.type() != value[0].type() || (!entry.is_string() && !entry.is_array())) {
      return WrongField(name, kExpected, entry);
    }
    if (entry.is_string()) {
      request->prompts.emplace_back(entry.get<std::string>());
    } else if (ApiResult error = ReadTokenIds(
                   name, entry,
                   &std::get<1>(request->prompts.emplace_back(std::vector<int32_t>())))) {
      return error;
    }
  }
  return std::nullopt;
}

// vLLM's name first, llama.cpp's second.
ApiResult ReadContent(std::string_view name, const Json& value, GenerationRequest* request) {
  return value.is_string() ? ReadPrompt(name, value, request) : WrongField(name, "a string", value);
}

ApiResult ReadTokens(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_array()) {
    return WrongField(name, "a list of token ids", value);
  }
  request->has_tokens = true;
  return ReadTokenIds(name, value, &request->tokens);
}

ApiResult ReadMessages(std::string_view, const Json& value, GenerationRequest* request) {
  return NormalizeMessages(value, &request->messages);
}

ApiResult ReadTemplateVariables(std::string_view name, const Json& value,
                                GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  request->template_variables = value;
  return std::nullopt;
}

// A template's variable that clients of reasoning models set beside chat_template_kwargs.
ApiResult ReadEnableThinking(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_boolean()) {
    return WrongField(name, "true or false", value);
  }
  request->template_variables[std::string(name)] = value;
  return std::nullopt;
}

ApiResult ReadStop(std::string_view name, const Json& value, GenerationRequest* request) {
  const std::string expected =
      base::StrCat("a string or a list of up to ", kMaxStopStrings, " strings");
  if (!value.is_string() && !(value.is_array() && value.size() <= kMaxStopStrings)) {
    return WrongField(name, expected, value);
  }
  const Json list = value.is_string() ? Json::array({value}) : value;
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().size() > kMaxStopBytes) {
      return WrongField(name, base::StrCat(expected, " of at most ", kMaxStopBytes, " bytes each"),
                        entry);
    }
    if (!entry.get_ref<const std::string&>().empty()) {
      request->stop.push_back(entry.get<std::string>());
    }
  }
  return std::nullopt;
}

ApiResult ReadStopTokens(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_array() || value.size() > kMaxStopTokens) {
    return WrongField(name, base::StrCat("a list of up to ", kMaxStopTokens, " token ids"), value);
  }
  return ReadTokenIds(name, value, &request->stop_token_ids);
}

ApiResult ReadLogitBias(std::string_view name, const Json& value, GenerationRequest* request) {
  static constexpr char kExpected[] = "an object from token ids to numbers between -100 and 100";
  if (!value.is_object()) {
    return WrongField(name, kExpected, value);
  }
  for (const auto& [key, bias] : value.items()) {
    int32_t id = -1;
    const char* end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0) {
      return WrongField(name, kExpected, Json(key));
    }
    if (!bias.is_number() || !(std::fabs(bias.get<double>()) <= 100)) {
      return WrongField(name, kExpected, bias);
    }
    request->logit_bias[id] = bias.get<float>();
  }
  return std::nullopt;
}

ApiResult ReadStreamOptions(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  request->has_stream_options = true;
  for (const auto& [key, target] :
       {std::pair("include_usage", &request->include_usage),
        std::pair("continuous_usage_stats", &request->continuous_usage)}) {
    if (const auto it = value.find(key); it != value.end() && !it->is_null()) {
      if (!it->is_boolean()) {
        return WrongField(std::string(name) + "." + key, "true or false", *it);
      }
      *target = it->get<bool>();
    }
  }
  return std::nullopt;
}

}  // namespace tandem::router
