#include "router/frontend/grammar_fields.h"

#include <string>
#include <utility>

#include "router/frontend/field_readers.h"

namespace tandem::router {
namespace {

using structured_output::GrammarSpec;

std::string Inside(std::string_view name, std::string_view member) {
  return std::string(name) + "." + std::string(member);
}

// `inside` of the field `name` must be `expected`.
ApiError Wrong(std::string_view name, const std::string& inside, const std::string& expected,
               const Json& value) {
  ApiError error = WrongField(inside, expected, value);
  error.param = std::string(name);
  return error;
}

ApiResult SetGrammar(std::string_view param, GrammarSpec::Kind kind, std::string text,
                     std::optional<GrammarSpec>* grammar) {
  if (text.size() > structured_output::kMaxSpecBytes) {
    return InvalidRequest("`" + std::string(param) + "` has more than " +
                              std::to_string(structured_output::kMaxSpecBytes) + " bytes.",
                          std::string(param));
  }
  grammar->emplace();
  (*grammar)->kind = kind;
  (*grammar)->text = std::move(text);
  (*grammar)->param = std::string(param);
  return std::nullopt;
}

// A schema as an object, or as the text of one.
ApiResult SetSchema(std::string_view name, const std::string& inside, const Json& schema,
                    std::optional<GrammarSpec>* grammar) {
  if (schema.is_object() || schema.is_boolean()) {
    return SetGrammar(name, GrammarSpec::Kind::kJsonSchema, schema.dump(), grammar);
  }
  const Json parsed =
      schema.is_string() ? Json::parse(schema.get<std::string>(), nullptr, false) : Json();
  if (!parsed.is_object() && !parsed.is_boolean()) {
    return Wrong(name, inside, "a JSON schema", schema);
  }
  return SetGrammar(name, GrammarSpec::Kind::kJsonSchema, schema.get<std::string>(), grammar);
}

ApiResult SetText(std::string_view name, const std::string& inside, GrammarSpec::Kind kind,
                  const Json& value, std::optional<GrammarSpec>* grammar) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return Wrong(name, inside, "a string that is not empty", value);
  }
  return SetGrammar(name, kind, value.get<std::string>(), grammar);
}

ApiResult SetChoices(std::string_view name, const std::string& inside, const Json& value,
                     std::optional<GrammarSpec>* grammar) {
  constexpr char kExpected[] = "a list of strings that are not empty";
  if (!value.is_array() || value.empty() || value.size() > structured_output::kMaxChoices) {
    return Wrong(name, inside, kExpected, value);
  }
  std::vector<std::string> choices;
  size_t bytes = 0;
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return Wrong(name, inside, kExpected, choice);
    }
    choices.push_back(choice.get<std::string>());
    bytes += choices.back().size();
  }
  if (bytes > structured_output::kMaxSpecBytes) {
    return InvalidRequest("`" + inside + "` is too long.", std::string(name));
  }
  if (ApiResult error = SetGrammar(name, GrammarSpec::Kind::kChoice, "", grammar)) {
    return error;
  }
  (*grammar)->choices = std::move(choices);
  return std::nullopt;
}

// By the name of the kind, which structured_outputs and guided_* share.
ApiResult SetByKind(std::string_view name, const std::string& inside, std::string_view kind,
                    const Json& value, std::optional<GrammarSpec>* grammar) {
  if (kind == "json") {
    return SetSchema(name, inside, value, grammar);
  }
  if (kind == "regex") {
    return SetText(name, inside, GrammarSpec::Kind::kRegex, value, grammar);
  }
  if (kind == "grammar") {
    return SetText(name, inside, GrammarSpec::Kind::kEbnf, value, grammar);
  }
  return SetChoices(name, inside, value, grammar);
}

ApiResult Once(std::string_view name, GenerationRequest* request,
               std::optional<GrammarSpec> grammar) {
  if (!grammar) {
    return std::nullopt;
  }
  if (request->grammar) {
    return InvalidRequest(
        "`" + std::string(name) + "` and `" + request->grammar->param + "` exclude each other.",
        std::string(name));
  }
  request->grammar = std::move(grammar);
  return std::nullopt;
}

}  // namespace

ApiResult GrammarFromFormat(std::string_view param, const Json& format,
                            std::optional<GrammarSpec>* grammar) {
  static constexpr char kTypes[] = "\"text\", \"json_object\" or \"json_schema\"";
  if (!format.is_object()) {
    return WrongField(param, "an object", format);
  }
  const auto type = format.find("type");
  if (type == format.end() || !type->is_string()) {
    return Wrong(param, Inside(param, "type"), kTypes, type == format.end() ? Json() : *type);
  }
  if (*type == "text") {
    return std::nullopt;
  }
  if (*type == "json_object") {
    return SetGrammar(param, GrammarSpec::Kind::kJsonObject, "", grammar);
  }
  if (*type != "json_schema") {
    return Wrong(param, Inside(param, "type"), kTypes, *type);
  }
  const auto nested = format.find("json_schema");
  const Json& holder = nested == format.end() ? format : *nested;
  const auto schema = holder.is_object() ? holder.find("schema") : holder.end();
  const std::string inside =
      Inside(param, nested == format.end() ? "schema" : "json_schema.schema");
  if (schema == holder.end() || !(schema->is_object() || schema->is_boolean())) {
    return Wrong(param, inside, "a JSON schema", schema == holder.end() ? Json() : *schema);
  }
  return SetSchema(param, inside, *schema, grammar);
}

ApiResult ReadResponseFormat(std::string_view name, const Json& value, GenerationRequest* request) {
  std::optional<GrammarSpec> grammar;
  if (ApiResult error = GrammarFromFormat(name, value, &grammar)) {
    return error;
  }
  return Once(name, request, std::move(grammar));
}

ApiResult ReadStructuredOutputs(std::string_view name, const Json& value,
                                GenerationRequest* request) {
  if (!value.is_object()) {
    return WrongField(name, "an object", value);
  }
  std::optional<GrammarSpec> grammar;
  std::string_view first;
  for (const std::string_view kind : {"json", "regex", "choice", "grammar", "json_object"}) {
    const auto it = value.find(kind);
    if (it == value.end() || it->is_null() || (kind == "json_object" && *it == false)) {
      continue;
    }
    if (grammar) {
      return InvalidRequest(
          "`" + Inside(name, first) + "` and `" + Inside(name, kind) + "` exclude each other.",
          std::string(name));
    }
    first = kind;
    const std::string inside = Inside(name, kind);
    ApiResult error;
    if (kind != "json_object") {
      error = SetByKind(name, inside, kind, *it, &grammar);
    } else if (*it == true) {
      error = SetGrammar(name, GrammarSpec::Kind::kJsonObject, "", &grammar);
    } else {
      error = Wrong(name, inside, "true or false", *it);
    }
    if (error) {
      return error;
    }
  }
  for (const std::string_view option :
       {"structural_tag", "whitespace_pattern", "disable_any_whitespace",
        "disable_additional_properties"}) {
    const auto it = value.find(option);
    if (it != value.end() && !it->is_null() && *it != false) {
      return InvalidRequest("`" + Inside(name, option) + "` is not supported.", std::string(name),
                            "unsupported_parameter");
    }
  }
  if (!grammar && !value.empty()) {
    return InvalidRequest("`" + std::string(name) +
                              "` needs one of `json`, `regex`, `choice`, `grammar` and "
                              "`json_object`.",
                          std::string(name));
  }
  return Once(name, request, std::move(grammar));
}

ApiResult ReadGuided(std::string_view name, const Json& value, GenerationRequest* request) {
  constexpr std::string_view kPrefix = "guided_";
  std::optional<GrammarSpec> grammar;
  if (ApiResult error =
          SetByKind(name, std::string(name), name.substr(kPrefix.size()), value, &grammar)) {
    return error;
  }
  return Once(name, request, std::move(grammar));
}

void FillGrammar(const structured_output::GrammarSpec& spec, v1::GrammarSpec* proto) {
  using Kind = structured_output::GrammarSpec::Kind;
  switch (spec.kind) {
    case Kind::kJsonObject:
      proto->set_kind(v1::GrammarSpec::KIND_JSON_OBJECT);
      break;
    case Kind::kJsonSchema:
      proto->set_kind(v1::GrammarSpec::KIND_JSON_SCHEMA);
      break;
    case Kind::kRegex:
      proto->set_kind(v1::GrammarSpec::KIND_REGEX);
      break;
    case Kind::kChoice:
      proto->set_kind(v1::GrammarSpec::KIND_CHOICE);
      break;
    case Kind::kEbnf:
      proto->set_kind(v1::GrammarSpec::KIND_EBNF);
      break;
    case Kind::kToolCalls:
      proto->set_kind(v1::GrammarSpec::KIND_TOOL_CALLS);
      break;
  }
  proto->set_text(spec.text);
  proto->mutable_choices()->Add(spec.choices.begin(), spec.choices.end());
  proto->set_param(spec.param);
}

}  // namespace tandem::router
