#include "router/frontend/endpoints/openapi_schemas.h"

#include <string>

#include "router/frontend/request_fields.h"

namespace tandem::router {
namespace {

// Fields of one type or one fixed schema, whatever the endpoint.
constexpr char kSimpleFields[] = R"json({
  "content": {"type": "string"},
  "stop": {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 16, "items": {"type": "string"}}]},
  "stop_sequences": {"type": "array", "maxItems": 16, "items": {"type": "string"}},
  "chat_template_kwargs": {"type": "object"},
  "enable_thinking": {"type": "boolean"},
  "instructions": {"type": "string"},
  "parallel_tool_calls": {"type": "boolean"},
  "reasoning_effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh"]},
  "reasoning": {"type": "object", "properties": {"effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", null]}}},
  "include": {"type": "array", "items": {"type": "string"}},
  "thinking": {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["enabled", "disabled", "adaptive"]}}},
  "user": {"type": "string"},
  "store": {"type": "boolean"},
  "service_tier": {"enum": ["auto", "default", "flex", "priority"]},
  "safety_identifier": {"type": "string"},
  "prompt_cache_key": {"type": "string"},
  "request_id": {"type": "string"},
  "prediction": {"type": "object"},
  "verbosity": {"type": "string"},
  "system": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
    "type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]}
})json";

constexpr char kStreamOptions[] = R"json({"type": "object", "properties": {
  "include_usage": {"type": ["boolean", "null"]}, "continuous_usage_stats": {"type": ["boolean", "null"]}}})json";

constexpr char kMetadata[] = R"json({"type": "object", "maxProperties": 16,
  "propertyNames": {"maxLength": 64}, "additionalProperties": {"type": "string", "maxLength": 512}})json";

constexpr char kChatMessages[] = R"json({"type": "array", "minItems": 1, "items": {
  "type": "object", "required": ["role", "content"], "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
    "name": {"type": ["string", "null"]}, "tool_call_id": {"type": ["string", "null"]},
    "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, {
      "type": "object", "required": ["text"], "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": {"type": "string"}}}]}}]}}}})json";

constexpr char kTurns[] = R"json({"type": "array", "minItems": 1, "items": {
  "type": "object", "required": ["role", "content"], "properties": {
    "role": {"enum": ["user", "assistant"]},
    "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {
      "type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]}}}})json";

constexpr char kInput[] =
    R"json({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {
  "type": "object", "required": ["role", "content"], "properties": {
    "type": {"const": "message"}, "role": {"enum": ["system", "developer", "user", "assistant"]},
    "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {
      "type": "object", "required": ["type", "text"], "properties": {
        "type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}}}}]}}}}]})json";

// Tools of the three forms; names are unique among a request's tools, which a schema cannot say.
constexpr char kFunction[] = R"json({"type": "object", "required": ["name"], "properties": {
  "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}, "description": {"type": ["string", "null"]},
  "parameters": {"type": ["object", "null"]}}})json";

Json Tools(Endpoint endpoint) {
  Json function = Json::parse(kFunction);
  Json tool = {{"type", "object"}};
  if (endpoint == Endpoint::kMessages) {
    tool = function;
    tool["properties"]["input_schema"] = {{"type", {"object", "null"}}};
    tool["properties"].erase("parameters");
    tool["properties"]["type"] = {{"enum", {"custom", nullptr}}};
  } else if (endpoint == Endpoint::kResponses) {
    tool = function;
    tool["required"] = {"type", "name"};
    tool["properties"]["type"] = {{"const", "function"}};
  } else {
    tool["required"] = Json::array({"function"});
    tool["properties"] = {{"type", {{"enum", {"function", nullptr}}}},
                          {"function", std::move(function)}};
  }
  return {{"type", "array"}, {"maxItems", 1024}, {"items", std::move(tool)}};
}

Json ToolChoiceSchema(Endpoint endpoint) {
  if (endpoint == Endpoint::kMessages) {
    return Json::parse(R"json({"type": "object", "required": ["type"], "properties": {
      "type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": ["string", "null"]},
      "disable_parallel_tool_use": {"type": ["boolean", "null"]}}})json");
  }
  Json named = {{"type", "object"}, {"required", {"name"}}};
  named["properties"]["name"] = {{"type", "string"}};
  Json function = {{"type", "object"}, {"required", {"type", "function"}}};
  function["properties"] = {{"type", {{"const", "function"}}}, {"function", named}};
  if (endpoint == Endpoint::kResponses) {
    named["required"] = {"type", "name"};
    named["properties"]["type"] = {{"const", "function"}};
    function = std::move(named);
  }
  Json allowed = {{"type", "object"}, {"required", {"type"}}};
  allowed["properties"]["type"] = {{"const", "allowed_tools"}};
  return {{"anyOf", Json::array({{{"enum", {"auto", "none", "required"}}},
                                 std::move(function),
                                 std::move(allowed)})}};
}

Json Ids(const SchemaLimits& limits, bool may_be_empty) {
  Json schema = {
      {"type", "array"},
      {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", limits.vocab_size - 1}}}};
  if (!may_be_empty) {
    schema["minItems"] = 1;
  }
  return schema;
}

Json PromptSchema(Endpoint endpoint, const SchemaLimits& limits) {
  Json text = {{"type", "string"}};
  if (endpoint == Endpoint::kTokenize) {
    return text;
  }
  const Json ids = Ids(limits, false);
  const auto list = [](const Json& items) -> Json {
    return {{"type", "array"}, {"minItems", 1}, {"maxItems", kMaxChoices}, {"items", items}};
  };
  return {{"anyOf", Json::array({text, list(text), ids, list(ids)})}};
}

Json LogitBias(const SchemaLimits& limits) {
  // Ids of as many digits as the vocabulary surely has.
  const std::string digits = std::to_string(std::to_string(limits.vocab_size).size() - 1);
  return {
      {"type", "object"},
      {"additionalProperties", false},
      {"patternProperties",
       {{"^[0-9]{1," + digits + "}$", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}}}};
}

}  // namespace

Json CustomFieldSchema(Endpoint endpoint, std::string_view name, const SchemaLimits& limits) {
  if (name == "model") {
    Json schema = {{"type", "string"},
                   {"description", "A name from /v1/models; may be left out where there is one."}};
    if (!limits.models.empty()) {
      schema["enum"] = limits.models;
    }
    return schema;
  }
  if (name == "prompt") {
    return PromptSchema(endpoint, limits);
  }
  if (name == "messages") {
    return Json::parse(endpoint == Endpoint::kMessages ? kTurns : kChatMessages);
  }
  if (name == "input") {
    return Json::parse(kInput);
  }
  if (name == "tools") {
    return Tools(endpoint == Endpoint::kTokenize ? Endpoint::kChat : endpoint);
  }
  if (name == "tool_choice") {
    return ToolChoiceSchema(endpoint);
  }
  if (name == "logit_bias") {
    return LogitBias(limits);
  }
  if (name == "stop_token_ids" || name == "tokens") {
    return Ids(limits, true);
  }
  if (name == "response_format" || name == "output_format") {
    return {{"type", "object"},
            {"required", {"type"}},
            {"properties", {{"type", {{"enum", {"text", "json_object"}}}}}}};
  }
  if (name == "stream_options") {
    return endpoint == Endpoint::kResponses ? Json{{"type", "object"}}
                                            : Json::parse(kStreamOptions);
  }
  if (name == "metadata") {
    return endpoint == Endpoint::kMessages ? Json{{"type", "object"}} : Json::parse(kMetadata);
  }
  static const Json kSimple = Json::parse(kSimpleFields);
  const auto it = kSimple.find(std::string(name));
  return it != kSimple.end() ? *it : Json();
}

Json AnswerSchemas() {
  static constexpr char kSchemas[] = R"json({
"Error": {"type": "object", "required": ["error"], "properties": {"error": {
  "type": "object", "required": ["message", "type", "param", "code"], "properties": {
    "message": {"type": "string"}, "type": {"type": "string"},
    "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"], "properties": {
  "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
  "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}},
  "completion_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"}}}}},
"FinishReason": {"enum": ["stop", "length", "tool_calls"]},
"Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "system_fingerprint": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
  "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"], "properties": {
    "index": {"type": "integer"}, "text": {"type": "string"}, "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
    "stop_reason": {"type": ["string", "integer", "null"]}, "logprobs": {"type": ["object", "null"]}}}}}},
"ToolCall": {"type": "object", "required": ["id", "type", "function"], "properties": {
  "id": {"type": "string"}, "type": {"const": "function"}, "function": {"type": "object", "required": ["name", "arguments"],
    "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}},
"ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "system_fingerprint": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
  "choices": {"type": "array", "items": {"type": "object", "required": ["index", "message", "logprobs", "finish_reason"], "properties": {
    "index": {"type": "integer"}, "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
    "stop_reason": {"type": ["string", "integer", "null"]}, "logprobs": {"type": ["object", "null"]},
    "message": {"type": "object", "required": ["role", "content"], "properties": {
      "role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"},
      "reasoning": {"type": "string"}, "reasoning_content": {"type": "string"},
      "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}}}}}}},
"Response": {"type": "object", "required": ["id", "object", "created_at", "status", "model", "output", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"}, "model": {"type": "string"},
  "status": {"enum": ["completed", "incomplete"]}, "store": {"const": false},
  "incomplete_details": {"type": ["object", "null"], "properties": {"reason": {"const": "max_output_tokens"}}},
  "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"], "properties": {
    "id": {"type": "string"}, "type": {"enum": ["message", "function_call", "reasoning"]}, "status": {"type": "string"}}}},
  "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
    "input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}}},
"Message": {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "properties": {
  "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"},
  "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}, "stop_sequence": {"type": ["string", "null"]},
  "content": {"type": "array", "items": {"type": "object", "required": ["type"], "properties": {
    "type": {"enum": ["text", "tool_use", "thinking"]}}}},
  "usage": {"type": "object", "required": ["input_tokens", "output_tokens"], "properties": {
    "input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}}}}},
"TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
  "count": {"type": "integer"}, "max_model_len": {"type": "integer"},
  "tokens": {"type": "array", "items": {"type": "integer"}}, "token_strs": {"type": "array", "items": {"type": "string"}}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "max_model_len"], "properties": {
  "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
  "root": {"type": "string"}, "parent": {"type": "null"}, "max_model_len": {"type": "integer"}}},
"ModelList": {"type": "object", "required": ["object", "data"], "properties": {
  "object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
"Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}}
})json";
  return Json::parse(kSchemas);
}

}  // namespace tandem::router
