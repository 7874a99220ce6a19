#include "router/frontend/endpoints/openapi.h"

#include <algorithm>
#include <limits>

#include "common/base/config.h"
#include "router/frontend/endpoints/openapi_schemas.h"
#include "router/frontend/field_table.h"
#include "router/frontend/routes.h"

namespace tandem::router {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Json Ref(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }

Json JsonContent(Json schema) { return {{"application/json", {{"schema", std::move(schema)}}}}; }

Json FieldSchema(const Field& field, Endpoint endpoint, const SchemaLimits& limits) {
  if (const auto* integer = std::get_if<Integer>(&field.kind)) {
    Json schema = {{"type", "integer"}, {"minimum", integer->min}, {"maximum", integer->max}};
    if (field.name.starts_with("max_") || field.name == "min_tokens") {
      schema["maximum"] = std::min(integer->max, limits.max_model_len - 1);
    }
    return schema;
  }
  if (const auto* number = std::get_if<Number>(&field.kind)) {
    Json schema = {{"type", "number"}, {"maximum", number->max}};
    schema[number->above_min ? "exclusiveMinimum" : "minimum"] = number->min;
    return schema;
  }
  if (std::holds_alternative<Flag>(field.kind) ||
      std::holds_alternative<OptionalFlag>(field.kind)) {
    return {{"type", "boolean"}};
  }
  return CustomFieldSchema(endpoint, field.name, limits);
}

std::vector<const char*> RequiredFields(Route route) {
  switch (route) {
    case Route::kCompletions:
      return {"prompt"};
    case Route::kChatCompletions:
    case Route::kCountTokens:
      return {"messages"};
    case Route::kResponses:
      return {"input"};
    case Route::kMessages:
      return {"messages", "max_tokens"};
    case Route::kDetokenize:
      return {"tokens"};
    default:
      return {};
  }
}

// The schema that takes null, too.
Json OrNull(Json schema) {
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
    return schema;
  }
  if (schema.contains("enum")) {
    schema["enum"].push_back(nullptr);
  }
  if (schema.contains("type")) {
    schema["type"] = Json::array({schema["type"], "null"});
  }
  return schema;
}

// Rules between fields, as far as a schema can tell them.
void AddRules(Route route, Json* schema) {
  if (route == Route::kTokenize) {
    (*schema)["oneOf"] = Json::array();
    for (const char* field : {"prompt", "content", "messages"}) {
      Json one = {{"required", Json::array({field})}};
      one["properties"][field]["not"]["type"] = "null";
      (*schema)["oneOf"].push_back(std::move(one));
    }
  }
  if (route == Route::kCompletions || route == Route::kChatCompletions) {
    Json streamed = {{"required", Json::array({"stream"})}};
    streamed["properties"]["stream"]["const"] = true;
    Json absent;
    absent["properties"]["stream_options"]["type"] = "null";
    (*schema)["dependentSchemas"]["stream_options"]["anyOf"] =
        Json::array({std::move(streamed), std::move(absent)});
  }
}

Json RequestSchema(Route route, const SchemaLimits& limits) {
  const Endpoint endpoint = EndpointOf(route);
  const std::vector<const char*> required = RequiredFields(route);
  Json properties = Json::object();
  for (const Field& field : AllFields()) {
    const bool refused = std::holds_alternative<Refused>(field.kind);
    if ((field.endpoints & EndpointBit(endpoint)) == 0 || refused) {
      continue;
    }
    Json schema = FieldSchema(field, endpoint, limits);
    if (schema.is_null()) {
      continue;
    }
    const bool needed = std::find(required.begin(), required.end(), field.name) != required.end();
    properties[std::string(field.name)] = needed ? std::move(schema) : OrNull(std::move(schema));
  }
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) {
    schema["required"] = required;
  }
  AddRules(route, &schema);
  return schema;
}

Json Error(const char* description) {
  return {{"description", description}, {"content", JsonContent(Ref("Error"))}};
}

// Every operation may give these.
void AddErrors(bool post, Json* responses) {
  (*responses)["401"] = Error("The API key is missing or wrong.");
  if (post) {
    (*responses)["400"] = Error("A field is wrong; `param` names it.");
    (*responses)["404"] = Error("The model does not exist.");
    (*responses)["413"] = Error("The body is too large.");
    (*responses)["429"] = Error("Too many requests; Retry-After says when to try again.");
    (*responses)["500"] = Error("The server failed.");
    (*responses)["502"] = Error("A worker failed, and no other could take over.");
    (*responses)["504"] = Error("The request took too long.");
  }
  (*responses)["503"] = Error("No worker is ready; Retry-After says when to try again.");
}

const char* AnswerOf(Route route) {
  switch (route) {
    case Route::kCompletions:
      return "Completion";
    case Route::kChatCompletions:
      return "ChatCompletion";
    case Route::kResponses:
      return "Response";
    case Route::kMessages:
      return "Message";
    case Route::kCountTokens:
      return "TokenCount";
    case Route::kTokenize:
      return "Tokens";
    case Route::kDetokenize:
      return "Text";
    case Route::kModels:
      return "ModelList";
    case Route::kVersion:
      return "Version";
    default:
      return "Status";
  }
}

const char* SummaryOf(Route route) {
  switch (route) {
    case Route::kCompletions:
      return "Complete a text (OpenAI's legacy completions)";
    case Route::kChatCompletions:
      return "Answer a chat (OpenAI's chat completions)";
    case Route::kResponses:
      return "Answer a chat (OpenAI's responses)";
    case Route::kMessages:
      return "Answer a chat (Anthropic's messages)";
    case Route::kCountTokens:
      return "Count the tokens of a chat (Anthropic's)";
    case Route::kTokenize:
      return "Tokens of a text or a chat";
    case Route::kDetokenize:
      return "The text of tokens";
    case Route::kModels:
      return "The models that are served";
    case Route::kHealth:
      return "200 while the process makes progress";
    case Route::kReady:
      return "200 while a worker can take requests";
    case Route::kVersion:
      return "The server's version";
    default:
      return "Metrics in Prometheus' text format";
  }
}

bool Streams(Route route) {
  return route == Route::kCompletions || route == Route::kChatCompletions ||
         route == Route::kResponses || route == Route::kMessages;
}

// One event; its data are JSON, or [DONE] at the end.
Json EventSchema() {
  Json schema = {{"type", "object"}, {"required", Json::array({"data"})}};
  schema["properties"] = {{"event", {{"type", "string"}}}, {"data", {{"type", "string"}}}};
  return schema;
}

Json Operation(const RouteEntry& entry, const SchemaLimits& limits) {
  const bool post = entry.method == "POST";
  Json content = entry.route == Route::kMetrics
                     ? Json{{"text/plain", {{"schema", {{"type", "string"}}}}}}
                     : JsonContent(Ref(AnswerOf(entry.route)));
  if (Streams(entry.route)) {
    content["text/event-stream"]["schema"] = EventSchema();
  }
  Json operation = {{"summary", SummaryOf(entry.route)}};
  if (post) {
    operation["requestBody"] = {{"required", true},
                                {"content", JsonContent(RequestSchema(entry.route, limits))}};
  }
  operation["responses"]["200"] = {{"description", "The answer."}, {"content", std::move(content)}};
  AddErrors(post, &operation["responses"]);
  if (IsOpen(entry.route)) {
    operation["security"] = Json::array();
  }
  return operation;
}

Json OneModel() {
  Json operation = {{"summary", "One model"}};
  operation["parameters"] = Json::array({{{"name", "model"},
                                          {"in", "path"},
                                          {"required", true},
                                          {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  operation["responses"]["200"] = {{"description", "The model."},
                                   {"content", JsonContent(Ref("Model"))}};
  operation["responses"]["404"] = Error("The model does not exist.");
  AddErrors(false, &operation["responses"]);
  return operation;
}

}  // namespace

std::string OpenApiDocument(const std::vector<std::shared_ptr<const ModelInfo>>& models) {
  SchemaLimits limits{kMaxInt32, kMaxInt32, {}};
  for (const auto& model : models) {
    limits.max_model_len = std::min<int64_t>(limits.max_model_len, model->max_model_len);
    limits.vocab_size = std::min<int64_t>(limits.vocab_size, model->vocab_size);
    limits.models.insert(limits.models.end(), model->served_names.begin(),
                         model->served_names.end());
  }
  Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Tandem"},
        {"version", std::string(base::Version())},
        {"description",
         "An OpenAI-compatible server. Fields that are not listed are ignored; a null counts as "
         "absent."}}}};
  for (const RouteEntry& entry : AllRoutes()) {
    const bool shown = entry.route != Route::kUnsupported && entry.route != Route::kPage &&
                       entry.route != Route::kDocument && entry.route != Route::kStats;
    if (shown) {
      document["paths"][std::string(entry.path)][entry.method == "GET" ? "get" : "post"] =
          Operation(entry, limits);
    }
  }
  document["paths"]["/v1/models/{model}"]["get"] = OneModel();
  document["components"]["schemas"] = AnswerSchemas();
  document["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  document["security"] = Json::array({{{"key", Json::array()}}, Json::object()});
  return document.dump();
}

}  // namespace tandem::router
