#include "router/frontend/endpoints/responses_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "router/frontend/chat_messages.h"
#include "router/frontend/field_readers.h"
#include "router/frontend/grammar_fields.h"

namespace tandem::router {
namespace {

constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                      "medium", "high",    "xhigh"};

Json Member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() ? *it : Json();
}

// A message's content: text, or parts of text.
ApiResult ReadItemContent(const std::string& where, const Json& content, Json* out) {
  if (content.is_string()) {
    *out = content;
    return std::nullopt;
  }
  if (!content.is_array() || content.empty()) {
    return WrongField(where, "a string or a list of text parts that is not empty", content);
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const Json type = part.is_object() ? Member(part, "type") : Json();
    const bool refusal = type == "refusal";
    if (!refusal && type != "input_text" && type != "output_text" && type != "text") {
      return WrongField(where + "[" + std::to_string(i) + "].type",
                        "\"input_text\" or \"output_text\" (this model takes only text)", type);
    }
    const Json piece = Member(part, refusal ? "refusal" : "text");
    if (!piece.is_string()) {
      return WrongField(where + "[" + std::to_string(i) + "].text", "a string", piece);
    }
    text += i > 0 ? "\n" : "";
    text += piece.get_ref<const std::string&>();
  }
  *out = std::move(text);
  return std::nullopt;
}

ApiResult AddMessage(const std::string& where, const Json& item, Json* messages) {
  const Json role = Member(item, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return WrongField(where + ".role", "\"user\", \"assistant\", \"system\" or \"developer\"",
                      role);
  }
  Json content;
  if (ApiResult error = ReadItemContent(where + ".content", Member(item, "content"), &content)) {
    return error;
  }
  messages->push_back({{"role", role}, {"content", std::move(content)}});
  return std::nullopt;
}

// Calls that follow one another are one message's.
ApiResult AddCall(const std::string& where, const Json& item, Json* messages) {
  for (const char* name : {"call_id", "name", "arguments"}) {
    if (!Member(item, name).is_string()) {
      return WrongField(where + "." + name, "a string", Member(item, name));
    }
  }
  if (!Json::parse(item["arguments"].get_ref<const std::string&>(), nullptr,
                   /*allow_exceptions=*/false)
           .is_object()) {
    return WrongField(where + ".arguments", "the text of a JSON object", item["arguments"]);
  }
  Json call = {{"id", item["call_id"]},
               {"type", "function"},
               {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}};
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  messages->back()["tool_calls"].push_back(std::move(call));
  return std::nullopt;
}

ApiResult AddResult(const std::string& where, const Json& item, Json* messages) {
  Json content;
  if (!Member(item, "call_id").is_string()) {
    return WrongField(where + ".call_id", "a string", Member(item, "call_id"));
  }
  if (ApiResult error = ReadItemContent(where + ".output", Member(item, "output"), &content)) {
    return error;
  }
  messages->push_back(
      {{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(content)}});
  return std::nullopt;
}

ApiResult AddItem(const std::string& where, const Json& item, Json* messages) {
  if (!item.is_object()) {
    return WrongField(where, "an object", item);
  }
  const Json type = item.contains("type") ? item["type"] : Json("message");
  if (type == "message") {
    return AddMessage(where, item, messages);
  }
  if (type == "function_call") {
    return AddCall(where, item, messages);
  }
  if (type == "function_call_output") {
    return AddResult(where, item, messages);
  }
  if (type == "reasoning") {
    return std::nullopt;  // templates drop earlier thoughts
  }
  return WrongField(where + ".type",
                    "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\"",
                    type);
}

}  // namespace

ApiResult ReadInput(std::string_view name, const Json& value, GenerationRequest* request) {
  Json messages = Json::array();
  if (value.is_string()) {
    messages.push_back({{"role", "user"}, {"content", value}});
  } else if (!value.is_array() || value.empty()) {
    return WrongField(name, "a string or a list of items that is not empty", value);
  } else {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string where = std::string(name) + "[" + std::to_string(i) + "]";
      if (ApiResult error = AddItem(where, value[i], &messages)) {
        return error;
      }
    }
  }
  ApiResult error = NormalizeMessages(messages, &request->messages);
  if (error) {
    error->param = std::string(name);
  }
  return error;
}

ApiResult ReadInstructions(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_string()) {
    return WrongField(name, "a string", value);
  }
  request->system = value.get<std::string>();
  return std::nullopt;
}

ApiResult ReadReasoningEffort(std::string_view name, const Json& value,
                              GenerationRequest* request) {
  if (!value.is_string() || std::find(kEfforts.begin(), kEfforts.end(),
                                      value.get_ref<const std::string&>()) == kEfforts.end()) {
    return WrongField(name, "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"",
                      value);
  }
  Json& variables = request->template_variables;
  if (!variables.contains("reasoning_effort")) {
    variables["reasoning_effort"] = value;
  }
  if (value == "none" && !variables.contains("enable_thinking")) {
    variables["enable_thinking"] = false;
  }
  return std::nullopt;
}

ApiResult ReadReasoning(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  const Json effort = Member(value, "effort");
  return effort.is_null() ? ApiResult()
                          : ReadReasoningEffort(std::string(name) + ".effort", effort, request);
}

ApiResult ReadTextFormat(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  const Json format = Member(value, "format");
  return format.is_null() ? ApiResult()
                          : ReadResponseFormat(std::string(name) + ".format", format, request);
}

ApiResult ReadInclude(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_array()) {
    return WrongField(name, "a list of strings", value);
  }
  for (const Json& entry : value) {
    if (!entry.is_string()) {
      return WrongField(name, "a list of strings", entry);
    }
    request->chat_logprobs = request->chat_logprobs || entry == "message.output_text.logprobs";
  }
  return std::nullopt;
}

}  // namespace tandem::router
