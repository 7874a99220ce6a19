#include <algorithm>
#include <array>
#include <utility>

#include "router/frontend/field_readers.h"
#include "router/frontend/tools.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxNameBytes = 128;

bool IsName(const Json& value) {
  if (!value.is_string()) {
    return false;
  }
  const auto& name = value.get_ref<const std::string&>();
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

Json Member(const Json& object, std::string_view name) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && it != object.end() ? *it : Json();
}

// Adds a function {name, description, parameters} that stands at `where` of the body.
ApiResult AddTool(const std::string& where, const Json& function, std::string_view schema_name,
                  GenerationRequest* request) {
  if (!function.is_object()) {
    return WrongField(where, "an object with the name of a function", function);
  }
  const Json name = Member(function, "name");
  if (!IsName(name)) {
    return WrongField(where + ".name",
                      "a name of 1 to 128 letters, digits, underscores, dashes and dots", name);
  }
  ToolSpec tool;
  tool.name = name.get<std::string>();
  for (const ToolSpec& other : request->tools.tools) {
    if (other.name == tool.name) {
      return InvalidRequest("`" + where + ".name` is there twice: " + Brief(name) + ".",
                            where + ".name");
    }
  }
  tool.parameters = Member(function, schema_name);
  if (tool.parameters.is_null()) {
    tool.parameters = Json{{"type", "object"}, {"properties", Json::object()}};
  }
  if (!tool.parameters.is_object()) {
    return WrongField(where + "." + std::string(schema_name), "a JSON schema (an object)",
                      tool.parameters);
  }
  if (const Json strict = Member(function, "strict"); !strict.is_null()) {
    if (!strict.is_boolean()) {
      return WrongField(where + ".strict", "true or false", strict);
    }
    tool.strict = strict.get<bool>();
  }
  Json shown = {{"name", name}};
  if (const Json description = Member(function, "description"); !description.is_null()) {
    if (!description.is_string()) {
      return WrongField(where + ".description", "a string", description);
    }
    shown["description"] = description;
  }
  shown["parameters"] = tool.parameters;
  request->tools.shown.push_back({{"type", "function"}, {"function", std::move(shown)}});
  request->tools.tools.push_back(std::move(tool));
  return std::nullopt;
}

using AddOne = ApiResult (*)(const std::string& where, const Json& tool,
                             GenerationRequest* request);

ApiResult ReadList(std::string_view name, const Json& value, GenerationRequest* request,
                   AddOne add) {
  if (!value.is_array() || value.size() > kMaxTools) {
    return WrongField(name, "a list of up to " + std::to_string(kMaxTools) + " tools", value);
  }
  if (value.empty()) {
    return std::nullopt;
  }
  request->tools.shown = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = std::string(name) + "[" + std::to_string(i) + "]";
    if (!value[i].is_object()) {
      return WrongField(where, "an object", value[i]);
    }
    if (ApiResult error = add(where, value[i], request)) {
      return error;
    }
  }
  return std::nullopt;
}

ApiResult AddChatTool(const std::string& where, const Json& tool, GenerationRequest* request) {
  const Json type = Member(tool, "type");
  const bool implied = type.is_null() && tool.contains("function");  // as vLLM reads it
  if (!implied && type != "function") {
    return WrongField(where + ".type", "\"function\"", type);
  }
  return AddTool(where + ".function", Member(tool, "function"), "parameters", request);
}

ApiResult AddFlatTool(const std::string& where, const Json& tool, GenerationRequest* request) {
  if (Member(tool, "type") != "function") {
    return WrongField(where + ".type", "\"function\" (this server has no tools of its own)",
                      Member(tool, "type"));
  }
  return AddTool(where, tool, "parameters", request);
}

ApiResult AddMessagesTool(const std::string& where, const Json& tool, GenerationRequest* request) {
  const Json type = Member(tool, "type");
  if (!type.is_null() && type != "custom") {
    return WrongField(where + ".type", "\"custom\" (this server has no tools of its own)", type);
  }
  return AddTool(where, tool, "input_schema", request);
}

bool ReadMode(const Json& value, ToolRequest* tools) {
  static constexpr std::array<std::pair<std::string_view, ToolChoice>, 3> kModes = {
      {{"auto", ToolChoice::kAuto},
       {"none", ToolChoice::kNone},
       {"required", ToolChoice::kRequired}}};
  for (const auto& [mode, choice] : kModes) {
    if (value == mode) {
      tools->choice = choice;
      return true;
    }
  }
  return false;
}

ApiResult Name(const Json& name, const std::string& where, ToolRequest* tools) {
  if (!IsName(name)) {
    return WrongField(where, "the name of one of the tools", name);
  }
  tools->choice = ToolChoice::kNamed;
  tools->named = name.get<std::string>();
  return std::nullopt;
}

// {"mode": ..., "tools": [...]}: of the tools only these may be called.
ApiResult ReadAllowed(const std::string& where, const Json& allowed, bool flat,
                      GenerationRequest* request) {
  const Json list = Member(allowed, "tools");
  const Json mode = Member(allowed, "mode");
  if ((mode != "auto" && mode != "required") || !ReadMode(mode, &request->tools)) {
    return WrongField(where + ".mode", "\"auto\" or \"required\"", mode);
  }
  if (!list.is_array() || list.empty()) {
    return WrongField(where + ".tools", "a list of tools that is not empty", list);
  }
  std::vector<ToolSpec> kept;
  for (const Json& entry : list) {
    const Json name = Member(flat ? entry : Member(entry, "function"), "name");
    const auto it = std::find_if(request->tools.tools.begin(), request->tools.tools.end(),
                                 [&](const ToolSpec& tool) { return name == tool.name; });
    if (it == request->tools.tools.end()) {
      return WrongField(where + ".tools", "a list of names that are in `tools`", name);
    }
    kept.push_back(*it);
  }
  request->tools.tools = std::move(kept);
  return std::nullopt;
}

}  // namespace

ApiResult ReadChatTools(std::string_view name, const Json& value, GenerationRequest* request) {
  return ReadList(name, value, request, &AddChatTool);
}

ApiResult ReadFlatTools(std::string_view name, const Json& value, GenerationRequest* request) {
  return ReadList(name, value, request, &AddFlatTool);
}

ApiResult ReadMessagesTools(std::string_view name, const Json& value, GenerationRequest* request) {
  return ReadList(name, value, request, &AddMessagesTool);
}

ApiResult ReadChatToolChoice(std::string_view name, const Json& value, GenerationRequest* request) {
  const std::string where(name);
  if (ReadMode(value, &request->tools)) {
    return std::nullopt;
  }
  const Json type = Member(value, "type");
  if (type == "function") {
    return Name(Member(Member(value, "function"), "name"), where + ".function.name",
                &request->tools);
  }
  if (type == "allowed_tools") {
    return ReadAllowed(where + ".allowed_tools", Member(value, "allowed_tools"), false, request);
  }
  return WrongField(name, "\"auto\", \"none\", \"required\" or an object that names a function",
                    value);
}

ApiResult ReadFlatToolChoice(std::string_view name, const Json& value, GenerationRequest* request) {
  const std::string where(name);
  if (ReadMode(value, &request->tools)) {
    return std::nullopt;
  }
  const Json type = Member(value, "type");
  if (type == "function") {
    return Name(Member(value, "name"), where + ".name", &request->tools);
  }
  if (type == "allowed_tools") {
    return ReadAllowed(where, value, true, request);
  }
  return WrongField(name, "\"auto\", \"none\", \"required\" or an object that names a function",
                    value);
}

ApiResult ReadMessagesToolChoice(std::string_view name, const Json& value,
                                 GenerationRequest* request) {
  ToolRequest& tools = request->tools;
  const Json type = Member(value, "type");
  const Json serial = Member(value, "disable_parallel_tool_use");
  if (!serial.is_null() && !serial.is_boolean()) {
    return WrongField(std::string(name) + ".disable_parallel_tool_use", "true or false", serial);
  }
  tools.parallel = serial != true;
  if (const Json other = Member(value, "name"); !other.is_null() && !other.is_string()) {
    return WrongField(std::string(name) + ".name", "a tool's name", other);
  }
  if (type == "tool") {
    return Name(Member(value, "name"), std::string(name) + ".name", &tools);
  }
  if (type == "any") {
    tools.choice = ToolChoice::kRequired;
    return std::nullopt;
  }
  if ((type != "auto" && type != "none") || !ReadMode(type, &tools)) {
    return WrongField(std::string(name) + ".type", "\"auto\", \"any\", \"tool\" or \"none\"", type);
  }
  return std::nullopt;
}

ApiResult ReadParallelToolCalls(std::string_view name, const Json& value,
                                GenerationRequest* request) {
  if (!value.is_boolean()) {
    return WrongField(name, "true or false", value);
  }
  request->tools.parallel = value.get<bool>();
  return std::nullopt;
}

ApiResult CheckTools(GenerationRequest* request) {
  ToolRequest& tools = request->tools;
  const bool forced = tools.choice == ToolChoice::kRequired || tools.choice == ToolChoice::kNamed;
  if (forced && tools.tools.empty()) {
    return InvalidRequest("`tool_choice` asks for a call, but there are no `tools`.",
                          "tool_choice");
  }
  if (tools.choice == ToolChoice::kNamed) {
    const auto named = std::find_if(tools.tools.begin(), tools.tools.end(),
                                    [&](const ToolSpec& tool) { return tool.name == tools.named; });
    if (named == tools.tools.end()) {
      return InvalidRequest(
          "`tool_choice` names " + Brief(Json(tools.named)) + ", which is none of the `tools`.",
          "tool_choice");
    }
    tools.tools = {ToolSpec(*named)};
  }
  if (forced && request->continue_final_message) {
    return InvalidRequest(
        "`continue_final_message` does not go with a `tool_choice` that asks for a call.",
        "tool_choice");
  }
  return std::nullopt;
}

}  // namespace tandem::router
