#include "router/frontend/chat_messages.h"

#include <algorithm>
#include <array>

#include "common/base/strings.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxMessages = 100'000;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};
// The newer ones are those of /v1/responses, which some clients send here as well.
constexpr std::array<std::string_view, 3> kTextTypes = {"text", "input_text", "output_text"};

ApiError Wrong(size_t index, const std::string& what) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  return InvalidRequest("`" + where + what, where);
}

// Text of a list of parts; templates of text models join them with line breaks.
ApiResult JoinParts(size_t index, const Json& parts, std::string* out) {
  bool first = true;
  for (const Json& part : parts) {
    const Json type = part.is_object() ? part.value("type", Json("text")) : Json("text");
    if (type.is_string() && type != "refusal" &&
        std::find(kTextTypes.begin(), kTextTypes.end(), type.get_ref<const std::string&>()) ==
            kTextTypes.end()) {
      return Wrong(index,
                   ".content` has a part of type " + Brief(type) + "; this model takes only text.");
    }
    const Json* text = &part;
    if (part.is_object()) {
      const auto it = part.find(type == "refusal" ? "refusal" : "text");
      text = it == part.end() || !type.is_string() ? nullptr : &*it;
    }
    if (text == nullptr || !text->is_string()) {
      return Wrong(index, ".content` has a part that is no text part.");
    }
    *out += first ? "" : "\n";
    *out += text->get_ref<const std::string&>();
    first = false;
  }
  return std::nullopt;
}

ApiResult ReadContent(size_t index, const Json& message, bool may_lack, Json* out) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (!may_lack) {
      return Wrong(index, ".content` is missing.");
    }
    (*out)["content"] = nullptr;
    return std::nullopt;
  }
  if (content->is_string()) {
    (*out)["content"] = *content;
    return std::nullopt;
  }
  if (!content->is_array() || content->empty()) {
    return Wrong(
        index, ".content` must be a string or a list of text parts, not " + Brief(*content) + ".");
  }
  std::string text;
  if (ApiResult error = JoinParts(index, *content, &text)) {
    return error;
  }
  (*out)["content"] = std::move(text);
  return std::nullopt;
}

// Arguments come as the text of a JSON object; templates want the object.
ApiResult ReadCalls(size_t index, const Json& calls, Json* out) {
  *out = Json::array();
  for (const Json& call : calls) {
    const Json function = call.is_object() ? call.value("function", Json()) : Json();
    if (!function.is_object() || !function.value("name", Json()).is_string()) {
      return Wrong(index, ".tool_calls` has a call without `function.name`.");
    }
    Json read = call;
    const auto arguments = function.find("arguments");
    if (arguments != function.end() && arguments->is_string()) {
      Json object = Json::parse(arguments->get_ref<const std::string&>(), nullptr,
                                /*allow_exceptions=*/false);
      const bool blank = arguments->get_ref<const std::string&>().empty();
      if (!object.is_object() && !blank) {
        return Wrong(index, ".tool_calls` has `arguments` that are not the text of a JSON object.");
      }
      read["function"]["arguments"] = blank ? Json::object() : std::move(object);
    }
    out->push_back(std::move(read));
  }
  return std::nullopt;
}

ApiResult ReadMessage(size_t index, const Json& message, Json* out) {
  if (!message.is_object()) {
    return Wrong(index, "` must be an object, not " + Brief(message) + ".");
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) ==
          kRoles.end()) {
    return Wrong(index, ".role` must be system, developer, user, assistant or tool" +
                            (role == message.end() ? "" : ", not " + Brief(*role)) + ".");
  }
  // Templates know the older name of what OpenAI's newer models call developer.
  (*out)["role"] = *role == "developer" ? Json("system") : *role;
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && !calls->is_null() && !calls->is_array()) {
    return Wrong(index, ".tool_calls` must be a list, not " + Brief(*calls) + ".");
  }
  const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
  if (ApiResult error = ReadContent(index, message, *role == "assistant" && has_calls, out)) {
    return error;
  }
  for (const char* key : {"name", "tool_call_id"}) {
    const auto text = message.find(key);
    if (text != message.end() && !text->is_null() && !text->is_string()) {
      return Wrong(index, base::StrCat(".", key, "` must be a string, not ", Brief(*text), "."));
    }
  }
  for (const auto& [key, value] : message.items()) {
    if (key != "role" && key != "content" && key != "tool_calls" && !value.is_null()) {
      (*out)[key] = value;
    }
  }
  return has_calls ? ReadCalls(index, *calls, &(*out)["tool_calls"]) : std::nullopt;
}

}  // namespace

ApiResult NormalizeMessages(const Json& messages, Json* out) {
  if (!messages.is_array() || messages.empty() || messages.size() > kMaxMessages) {
    return InvalidRequest(
        "`messages` must be a list of at least one message, not " +
            (messages.is_array() && messages.empty() ? "an empty one" : Brief(messages)) + ".",
        "messages");
  }
  *out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Json message = Json::object();
    if (ApiResult error = ReadMessage(i, messages[i], &message)) {
      return error;
    }
    out->push_back(std::move(message));
  }
  return std::nullopt;
}

}  // namespace tandem::router
