#include "router/frontend/tools.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "common/structured_output/grammar_text.h"

namespace tandem::router {

using tool_calls::Format;

namespace {

constexpr std::string_view kToolIntroduction =
    "You can call functions. These are available, one JSON object per line:\n";
constexpr std::string_view kToolInstruction =
    "To call a function, answer with nothing but its name and arguments as a JSON object between "
    "tags:\n<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"ARGUMENT\": "
    "\"VALUE\"}}\n</tool_call>";

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToolIntroduction(const Json& tools) {
  std::string text(kToolIntroduction);
  for (const Json& tool : tools) {
    text += Dump(tool);
    text += '\n';
  }
  text += kToolInstruction;
  return text;
}

std::string ContentOf(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

void Join(std::string_view more, std::string* text) {
  if (!text->empty() && !more.empty()) {
    *text += '\n';
  }
  *text += more;
}

// An assistant's calls, the way in which the introduction asks for them.
Json CallsAsText(const Json& message) {
  std::string text = ContentOf(message);
  for (const Json& call : message["tool_calls"]) {
    const Json function = call.value("function", Json::object());
    const Json shown = {{"name", function.value("name", Json(""))},
                        {"arguments", function.value("arguments", Json::object())}};
    Join("<tool_call>\n" + Dump(shown) + "\n</tool_call>", &text);
  }
  return {{"role", "assistant"}, {"content", std::move(text)}};
}

bool IsResult(const Json& message) {
  return message["role"] == "tool" || message["role"] == "function";
}

void AddIntroduction(std::string introduction, bool system_role, Json* messages) {
  Json& first = (*messages)[0];
  const std::string_view role = system_role ? "system" : "user";
  if (first["role"] == role) {
    const std::string content = ContentOf(first);
    first["content"] = system_role ? content + (content.empty() ? "" : "\n\n") + introduction
                                   : introduction + "\n\n" + content;
    return;
  }
  messages->insert(messages->begin(), Json{{"role", role}, {"content", std::move(introduction)}});
}

// A model that was never shown tools would repeat itself.
constexpr int kMaxParallelCalls = 8;
constexpr size_t kMistralIdBytes = 9;

structured_output::ToolCalls CallsOf(const ToolRequest& tools, const ModelText& text) {
  structured_output::ToolCalls calls;
  for (const ToolSpec& tool : tools.tools) {
    calls.tools.push_back(
        {tool.name, tool.parameters.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  switch (ToolFormatOf(text)) {
    case Format::kLlama3:
      calls.arguments_key = "parameters";
      return calls;  // one is the whole text
    case Format::kMistral:
      calls.prefix = "[";
      calls.separator = ", ";
      calls.suffix = "]";
      break;
    default:
      calls.call_begin = "<tool_call>\n";
      calls.call_end = "\n</tool_call>";
      calls.separator = "\n";
  }
  const bool several =
      tools.parallel && tools.choice != ToolChoice::kNamed && text.traits.knows_tools;
  calls.max_calls = several ? kMaxParallelCalls : 1;
  return calls;
}

// Calls that are asked for are enforced. Others are guarded once they have begun, where a tool is
// strict or the model does not know how to write calls.
void SetToolGrammar(GenerationRequest* request, const ModelText& text) {
  const ToolRequest& tools = request->tools;
  if (!tools.active()) {
    return;
  }
  structured_output::ToolCalls calls = CallsOf(tools, text);
  calls.required = tools.enforced();
  const bool strict = std::any_of(tools.tools.begin(), tools.tools.end(),
                                  [](const ToolSpec& tool) { return tool.strict; });
  const bool guarded =
      !request->grammar && !calls.call_begin.empty() && (strict || !text.traits.knows_tools);
  if (calls.required || guarded) {
    request->grammar = structured_output::ToolCallsSpec(calls, "tools");
  }
}

}  // namespace

Format ToolFormatOf(const ModelText& text) {
  return text.traits.knows_tools ? text.traits.tool_format : Format::kHermes;
}

ApiResult PrepareTools(GenerationRequest* request, const ModelText& text) {
  if (request->tools.active() && ToolFormatOf(text) == Format::kMistral) {
    request->skip_special_tokens = false;  // the mark of its calls is one
  }
  SetToolGrammar(request, text);
  return std::nullopt;
}

void WriteToolsAsText(const GenerationRequest& request, const ModelText& text, Json* messages) {
  Json rewritten = Json::array();
  bool after_result = false;
  for (const Json& message : *messages) {
    if (IsResult(message)) {
      std::string result = "<tool_response>\n" + ContentOf(message) + "\n</tool_response>";
      if (after_result) {  // the results of one turn are one message
        std::string joined = ContentOf(rewritten.back());
        Join(result, &joined);
        rewritten.back()["content"] = std::move(joined);
      } else {
        rewritten.push_back({{"role", "user"}, {"content", std::move(result)}});
      }
      after_result = true;
      continue;
    }
    after_result = false;
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
    rewritten.push_back(has_calls ? CallsAsText(message) : message);
  }
  if (request.tools.active()) {
    AddIntroduction(ToolIntroduction(request.tools.shown), text.traits.knows_system, &rewritten);
  }
  *messages = std::move(rewritten);
}

void FitCallIds(const ModelText& text, Json* messages) {
  if (ToolFormatOf(text) != Format::kMistral) {
    return;
  }
  const auto fit = [](Json* holder, const char* name) {
    const auto id = holder->find(name);
    if (id == holder->end() || !id->is_string()) {
      return;
    }
    std::string kept;
    for (const unsigned char c : id->get_ref<const std::string&>()) {
      kept += std::isalnum(c) != 0 ? std::string(1, static_cast<char>(c)) : "";
    }
    kept.insert(0, kept.size() < kMistralIdBytes ? kMistralIdBytes - kept.size() : 0, '0');
    *id = kept.substr(kept.size() - kMistralIdBytes);
  };
  for (Json& message : *messages) {
    fit(&message, "tool_call_id");
    if (const auto calls = message.find("tool_calls");
        calls != message.end() && calls->is_array()) {
      for (Json& call : *calls) {
        fit(&call, "id");
      }
    }
  }
}

tool_calls::OutputParserOptions ParserFor(const GenerationRequest& request, const ModelText& text,
                                          const TokenizedPrompt& prompt,
                                          const std::string& id_seed) {
  tool_calls::OutputParserOptions options;
  // A grammar leaves no room for thoughts, unless it only guards calls.
  const bool bound = request.grammar && (request.tools.enforced() || !request.tools.active());
  options.splits_reasoning = text.traits.reasoning && !bound;
  options.starts_in_reasoning = prompt.ends_in_reasoning;
  options.drops_reasoning = !request.include_reasoning;
  if (request.tools.active()) {
    options.tools.format = ToolFormatOf(text);
    options.tools.enforced = request.tools.enforced();
    options.tools.max_calls = request.tools.parallel ? options.tools.max_calls : 1;
    options.tools.id_seed = id_seed;
    for (const ToolSpec& tool : request.tools.tools) {
      options.tools.names.push_back(tool.name);
    }
  }
  return options;
}

}  // namespace tandem::router
