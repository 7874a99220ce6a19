#include "router/frontend/response_format.h"

#include "router/frontend/json_text.h"

namespace tandem::router {
namespace {

std::string_view ObjectName(const ResponseHead& head) {
  if (head.endpoint == Endpoint::kChat) {
    return head.stream ? "chat.completion.chunk" : "chat.completion";
  }
  return "text_completion";
}

void AppendOrNull(std::string_view json, std::string* out) { *out += json.empty() ? "null" : json; }

// With OpenAI's newer name, and the older one that most clients know.
void AppendReasoning(std::string_view reasoning, std::string* out) {
  for (const char* name : {"reasoning", "reasoning_content"}) {
    *out += ",\"";
    *out += name;
    *out += "\":";
    AppendJsonString(reasoning, out);
  }
}

void AppendCall(const tool_calls::CallDelta& call, bool stream, std::string* out) {
  *out += '{';
  if (stream) {
    *out += "\"index\":";
    AppendJsonInt(call.index, out);
    *out += ',';
  }
  if (!call.id.empty()) {
    *out += "\"id\":";
    AppendJsonString(call.id, out);
    *out += ",\"type\":\"function\",";
  }
  *out += "\"function\":{";
  if (!call.name.empty()) {
    *out += "\"name\":";
    AppendJsonString(call.name, out);
    *out += ',';
  }
  *out += "\"arguments\":";
  AppendJsonString(call.arguments, out);
  *out += "}}";
}

void AppendCalls(std::span<const tool_calls::CallDelta> calls, bool stream, std::string* out) {
  *out += ",\"tool_calls\":[";
  for (size_t i = 0; i < calls.size(); ++i) {
    *out += i > 0 ? "," : "";
    AppendCall(calls[i], stream, out);
  }
  *out += ']';
}

void AppendDelta(const ChoicePart& part, std::string* out) {
  *out += ",\"delta\":{";
  std::string members;
  if (!part.text.empty() || (part.reasoning.empty() && part.calls.empty())) {
    members += ",\"content\":";
    AppendJsonString(part.text, &members);
  }
  if (!part.reasoning.empty()) {
    AppendReasoning(part.reasoning, &members);
  }
  if (!part.calls.empty()) {
    AppendCalls(part.calls, true, &members);
  }
  out->append(members, 1);
  *out += '}';
}

void AppendMessage(const ChoicePart& part, std::string* out) {
  *out += ",\"message\":{\"role\":\"assistant\",\"content\":";
  if (part.text.empty() && !part.calls.empty()) {
    *out += "null";
  } else {
    AppendJsonString(part.text, out);
  }
  *out += ",\"refusal\":null";
  if (!part.reasoning.empty()) {
    AppendReasoning(part.reasoning, out);
  }
  if (!part.calls.empty()) {
    AppendCalls(part.calls, false, out);
  }
  *out += '}';
}

}  // namespace

void AppendIdsMember(std::string_view name, const std::optional<std::span<const int32_t>>& ids,
                     std::string* out) {
  if (ids) {
    *out += ",\"";
    *out += name;
    *out += "\":";
    AppendIds(*ids, out);
  }
}

std::string ResponsePrefix(const ResponseHead& head) {
  std::string out = "{\"id\":";
  AppendJsonString(head.id, &out);
  out += ",\"object\":\"";
  out += ObjectName(head);
  out += "\",\"created\":";
  AppendJsonInt(head.created_unix_s, &out);
  out += ",\"model\":";
  AppendJsonString(head.model, &out);
  if (!head.system_fingerprint.empty()) {
    out += ",\"system_fingerprint\":";
    AppendJsonString(head.system_fingerprint, &out);
  }
  out += ",\"choices\":[";
  return out;
}

void AppendChoice(const ResponseHead& head, const ChoicePart& part, std::string* out) {
  *out += "{\"index\":";
  AppendJsonInt(part.index, out);
  if (head.endpoint == Endpoint::kCompletions) {
    *out += ",\"text\":";
    AppendJsonString(part.text, out);
  } else if (head.stream) {
    AppendDelta(part, out);
  } else {
    AppendMessage(part, out);
  }
  *out += ",\"logprobs\":";
  AppendOrNull(part.logprobs_json, out);
  *out += ",\"finish_reason\":";
  if (part.finish_reason.empty()) {
    *out += "null";
  } else {
    AppendJsonString(part.finish_reason, out);
  }
  if (!head.stream || !part.finish_reason.empty()) {
    *out += ",\"stop_reason\":";
    AppendOrNull(part.stop_reason_json, out);
  }
  if (head.endpoint == Endpoint::kCompletions) {
    if (!part.prompt_logprobs_json.empty()) {
      *out += ",\"prompt_logprobs\":";
      *out += part.prompt_logprobs_json;
    }
    AppendIdsMember("prompt_token_ids", part.prompt_token_ids, out);
  }
  AppendIdsMember("token_ids", part.token_ids, out);
  *out += '}';
}

void AppendRoleChoice(int index, std::string* out) {
  *out += "{\"index\":";
  AppendJsonInt(index, out);
  *out +=
      ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
      "\"finish_reason\":null}";
}

void AppendUsage(const UsageCounts& usage, std::string* out) {
  *out += "{\"prompt_tokens\":";
  AppendJsonInt(usage.prompt_tokens, out);
  *out += ",\"completion_tokens\":";
  AppendJsonInt(usage.completion_tokens, out);
  *out += ",\"total_tokens\":";
  AppendJsonInt(usage.prompt_tokens + usage.completion_tokens, out);
  *out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  AppendJsonInt(usage.cached_tokens, out);
  *out += "},\"completion_tokens_details\":{\"reasoning_tokens\":";
  AppendJsonInt(usage.reasoning_tokens, out);
  *out += "}}";
}

void AppendIds(std::span<const int32_t> ids, std::string* out) {
  *out += '[';
  bool first = true;
  for (const int32_t id : ids) {
    *out += first ? "" : ",";
    AppendJsonInt(id, out);
    first = false;
  }
  *out += ']';
}

std::string ErrorBodyFor(Endpoint endpoint, const ApiError& error) {
  std::string body = ErrorBody(error);
  if (endpoint == Endpoint::kMessages) {
    body.insert(1, "\"type\":\"error\",");
  }
  return body;
}

void AppendModel(const ModelInfo& model, std::string_view name, std::string* out) {
  *out += "{\"id\":";
  AppendJsonString(name, out);
  *out += ",\"object\":\"model\",\"created\":";
  AppendJsonInt(model.created_unix_s, out);
  *out += ",\"owned_by\":\"tandem\",\"root\":";
  AppendJsonString(model.root, out);
  *out += ",\"parent\":null,\"max_model_len\":";
  AppendJsonInt(model.max_model_len, out);
  *out += '}';
}

}  // namespace tandem::router
