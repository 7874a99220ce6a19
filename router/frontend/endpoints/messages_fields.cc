#include "router/frontend/endpoints/messages_fields.h"

#include <string>
#include <utility>

#include "router/frontend/chat_messages.h"
#include "router/frontend/field_readers.h"
#include "router/frontend/grammar_fields.h"

namespace tandem::router {
namespace {

Json Member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() ? *it : Json();
}

std::string At(const std::string& where, size_t index) {
  return where + "[" + std::to_string(index) + "]";
}

void Join(std::string_view more, std::string* text) {
  *text += text->empty() ? "" : "\n";
  *text += more;
}

// Text, or blocks of text.
ApiResult ReadText(const std::string& where, const Json& value, std::string* out) {
  if (value.is_string()) {
    *out = value.get<std::string>();
    return std::nullopt;
  }
  if (!value.is_array()) {
    return WrongField(where, "a string or a list of text blocks", value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& block = value[i];
    const Json text = block.is_object() ? Member(block, "text") : Json();
    if (!block.is_object() || Member(block, "type") != "text" || !text.is_string()) {
      return WrongField(At(where, i), "a text block (this model takes only text)", block);
    }
    Join(text.get_ref<const std::string&>(), out);
  }
  return std::nullopt;
}

// What the blocks of one turn hold.
struct Turn {
  std::string text;
  Json calls = Json::array();
  Json results = Json::array();
};

ApiResult AddCall(const std::string& where, const Json& block, Turn* turn) {
  for (const char* name : {"id", "name"}) {
    if (!Member(block, name).is_string()) {
      return WrongField(where + "." + name, "a string", Member(block, name));
    }
  }
  const Json input = Member(block, "input");
  if (!input.is_object()) {
    return WrongField(where + ".input", "an object", input);
  }
  turn->calls.push_back({{"id", block["id"]},
                         {"type", "function"},
                         {"function", {{"name", block["name"]}, {"arguments", input}}}});
  return std::nullopt;
}

ApiResult AddResult(const std::string& where, const Json& block, Turn* turn) {
  if (!Member(block, "tool_use_id").is_string()) {
    return WrongField(where + ".tool_use_id", "a string", Member(block, "tool_use_id"));
  }
  std::string text;
  const Json content = Member(block, "content");
  if (!content.is_null()) {
    if (ApiResult error = ReadText(where + ".content", content, &text)) {
      return error;
    }
  }
  turn->results.push_back(
      {{"role", "tool"}, {"tool_call_id", block["tool_use_id"]}, {"content", std::move(text)}});
  return std::nullopt;
}

ApiResult AddBlock(const std::string& where, const Json& block, bool assistant, Turn* turn) {
  if (!block.is_object()) {
    return WrongField(where, "an object", block);
  }
  const Json type = Member(block, "type");
  if (type == "text" && Member(block, "text").is_string()) {
    Join(block["text"].get_ref<const std::string&>(), &turn->text);
    return std::nullopt;
  }
  if (type == "tool_use" && assistant) {
    return AddCall(where, block, turn);
  }
  if (type == "tool_result" && !assistant) {
    return AddResult(where, block, turn);
  }
  if (assistant && (type == "thinking" || type == "redacted_thinking")) {
    return std::nullopt;  // templates drop earlier thoughts
  }
  return WrongField(where + ".type",
                    assistant ? "\"text\", \"tool_use\" or \"thinking\""
                              : "\"text\" or \"tool_result\" (this model takes only text)",
                    type);
}

ApiResult AddTurn(const std::string& where, const Json& message, Json* messages) {
  const Json role = message.is_object() ? Member(message, "role") : Json();
  const bool assistant = role == "assistant";
  if (!assistant && role != "user") {
    return WrongField(where + ".role", "\"user\" or \"assistant\"", role);
  }
  const Json content = Member(message, "content");
  Turn turn;
  if (content.is_string()) {
    turn.text = content.get<std::string>();
  } else if (!content.is_array() || content.empty()) {
    return WrongField(where + ".content", "a string or a list of blocks that is not empty",
                      content);
  } else {
    for (size_t i = 0; i < content.size(); ++i) {
      if (ApiResult error = AddBlock(At(where + ".content", i), content[i], assistant, &turn)) {
        return error;
      }
    }
  }
  for (Json& result : turn.results) {
    messages->push_back(std::move(result));
  }
  if (!turn.text.empty() || !turn.calls.empty() || turn.results.empty()) {
    Json made = {{"role", role}, {"content", std::move(turn.text)}};
    if (!turn.calls.empty()) {
      made["tool_calls"] = std::move(turn.calls);
    }
    messages->push_back(std::move(made));
  }
  return std::nullopt;
}

}  // namespace

ApiResult ReadTurns(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_array() || value.empty()) {
    return WrongField(name, "a list of messages that is not empty", value);
  }
  Json messages = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    if (ApiResult error = AddTurn(At(std::string(name), i), value[i], &messages)) {
      return error;
    }
  }
  // An assistant's turn at the end is the beginning of the answer.
  const Json& last = messages.back();
  request->continue_final_message =
      last["role"] == "assistant" && !last.contains("tool_calls") &&
      !(last["content"].is_string() && last["content"].get_ref<const std::string&>().empty());
  return NormalizeMessages(messages, &request->messages);
}

ApiResult ReadSystem(std::string_view name, const Json& value, GenerationRequest* request) {
  return ReadText(std::string(name), value, &request->system);
}

ApiResult ReadOutputConfig(std::string_view name, const Json& value, GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  const Json format = Member(value, "format");
  return format.is_null() ? ApiResult()
                          : ReadResponseFormat(std::string(name) + ".format", format, request);
}

ApiResult ReadThinking(std::string_view name, const Json& value, GenerationRequest* request) {
  const Json type = value.is_object() ? Member(value, "type") : Json();
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return WrongField(std::string(name) + ".type", "\"enabled\", \"disabled\" or \"adaptive\"",
                      type);
  }
  request->template_variables["enable_thinking"] = type != "disabled";
  return std::nullopt;
}

}  // namespace tandem::router
