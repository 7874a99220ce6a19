#include <gtest/gtest.h>

#include "tests/contract/router/dialects_fixture.h"

namespace tandem::router {
namespace {

// Appends a call of get_weather by the assistant and its result to the messages.
void AddCall(const char* id, const char* arguments, const char* result, Json* body) {
  Json call = {{"id", id},
               {"type", "function"},
               {"function", {{"name", "get_weather"}, {"arguments", arguments}}}};
  Json& messages = (*body)["messages"];
  messages.push_back({{"role", "assistant"},
                      {"content", nullptr},
                      {"tool_calls", Json::array({std::move(call)})}});
  messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
}

class ToolCallsTest : public DialectsTest {};

TEST_F(ToolCallsTest, ToolCallsOfAChat) {
  Start();
  Say(kCall);
  const Json choice = Post("/v1/chat/completions", WithTool()).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const Json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["function"],
            (Json{{"name", "get_weather"}, {"arguments", "{\"city\": \"Oslo\"}"}}));
  // This template knows no tools: they are in a system message.
  EXPECT_NE(LastPrompt().find("<system>You can call functions"), std::string::npos);
  EXPECT_NE(LastPrompt().find("\"get_weather\""), std::string::npos);
}

TEST_F(ToolCallsTest, StreamedToolCallsOfAChat) {
  Start();
  Say(kCall);
  std::string content, name, arguments, id, finish;
  for (const auto& [event, data] : Events("/v1/chat/completions", WithTool())) {
    const Json choice = data["choices"][0];
    content += choice["delta"].value("content", "");
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      EXPECT_EQ(call["index"], 0);
      id += call.value("id", "");
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
    if (choice["finish_reason"].is_string()) {
      finish = choice["finish_reason"];
    }
  }
  EXPECT_EQ(content, "Let me see.");
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(arguments, "{\"city\": \"Oslo\"}");
  EXPECT_EQ(id.size(), 29u);
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ToolCallsTest, ToolChoiceNoneLeavesTheTextAsItIs) {
  Start();
  Say(kCall);
  const Json reply = Post("/v1/chat/completions", WithTool({{"tool_choice", "none"}})).json();
  EXPECT_EQ(reply["choices"][0]["message"]["content"], kCall);
  EXPECT_EQ(LastPrompt().find("get_weather"), std::string::npos);
}

TEST_F(ToolCallsTest, CallsThatAreAskedForAreEnforced) {
  Start();
  Say("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Oslo\"}}\n</tool_call>");
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const auto& [choice, reason] :
       {std::pair<Json, const char*>("required", "tool_calls"), {named, "stop"}}) {
    const Json reply =
        Post("/v1/chat/completions", WithTool({{"tool_choice", choice}})).json()["choices"][0];
    EXPECT_EQ(reply["message"]["tool_calls"][0]["function"]["name"], "get_weather");
    EXPECT_TRUE(reply["message"]["content"].is_null());
    EXPECT_EQ(reply["finish_reason"], reason);
    const v1::GrammarSpec grammar = worker_->requests().back().grammar();
    EXPECT_EQ(grammar.kind(), v1::GrammarSpec::KIND_TOOL_CALLS);
    EXPECT_EQ(grammar.param(), "tools");
    const Json calls = Json::parse(grammar.text());
    EXPECT_EQ(calls["required"], true);
    EXPECT_EQ(calls["max_calls"], 1);
  }
  // Free, but held to its schema once it has begun: this model was never shown tools.
  Post("/v1/chat/completions", WithTool());
  EXPECT_EQ(Json::parse(worker_->requests().back().grammar().text())["required"], false);
  Post("/v1/chat/completions", WithTool({{"tool_choice", "none"}}));
  EXPECT_FALSE(worker_->requests().back().has_grammar());
}

TEST_F(ToolCallsTest, AModelThatKnowsToolsIsFreeUnlessAToolIsStrict) {
  Start("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}x");
  Say("Fine.");
  Post("/v1/chat/completions", WithTool());
  EXPECT_FALSE(worker_->requests().back().has_grammar());
  Json strict = WithTool();
  strict["tools"][0]["function"]["strict"] = true;
  Post("/v1/chat/completions", strict);
  EXPECT_TRUE(worker_->requests().back().has_grammar());
  Post("/v1/chat/completions", WithTool({{"tool_choice", "required"}}));
  EXPECT_GT(Json::parse(worker_->requests().back().grammar().text())["max_calls"], 1);
  Post("/v1/chat/completions",
       WithTool({{"tool_choice", "required"}, {"parallel_tool_calls", false}}));
  EXPECT_EQ(Json::parse(worker_->requests().back().grammar().text())["max_calls"], 1);
}

TEST_F(ToolCallsTest, ATemplateThatKnowsToolsGetsThem) {
  Start(
      "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
      "{% for c in m.tool_calls or [] %}[{{ c.function.arguments.city }}]{% endfor %}{% endfor %}");
  Say("Fine.");
  Json body = WithTool();
  AddCall("c1", "{\"city\":\"Rome\"}", "4 degrees", &body);
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  EXPECT_TRUE(LastPrompt().starts_with("get_weather;<user>")) << LastPrompt();
  EXPECT_NE(LastPrompt().find("[Rome]<tool>4 degrees"), std::string::npos) << LastPrompt();
}

TEST_F(ToolCallsTest, MistralsTemplatesGetIdsOfNineCharacters) {
  Start(
      "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{# [TOOL_CALLS] #}"
      "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.id }}>{% endfor %}"
      "{% if m.tool_call_id %}<{{ m.tool_call_id }}>{% endif %}{% endfor %}");
  Say("Fine.");
  Json body = WithTool();
  for (const char* id : {"call_abc-defghijk", "x1"}) {
    AddCall(id, "{}", "x", &body);
  }
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  EXPECT_NE(LastPrompt().find("<cdefghijk><cdefghijk><0000000x1><0000000x1>"), std::string::npos)
      << LastPrompt();
}

TEST_F(ToolCallsTest, CallsAndResultsAsTextWhereTheTemplateKnowsNone) {
  Start();
  Say("Fine.");
  Json body = WithTool();
  AddCall("c1", "{\"city\":\"Rome\"}", "4 degrees", &body);
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  EXPECT_NE(LastPrompt().find("<assistant><tool_call>\n{\"name\":\"get_weather\",\"arguments\":{"
                              "\"city\":\"Rome\"}}\n</tool_call></end>"),
            std::string::npos)
      << LastPrompt();
  EXPECT_NE(LastPrompt().find("<user><tool_response>\n4 degrees\n</tool_response></end>"),
            std::string::npos);
}

TEST_F(ToolCallsTest, StreamedResponseWithACall) {
  Start();
  Say(kCall);
  Json tool = kWeather;
  tool["type"] = "function";
  const auto events =
      Events("/v1/responses", {{"input", "Weather?"}, {"tools", Json::array({tool})}});
  std::vector<std::string> types;
  std::string text, arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& [name, data] = events[i];
    EXPECT_EQ(data["type"], name);
    EXPECT_EQ(data["sequence_number"], i);
    if (types.empty() || types.back() != name) {
      types.push_back(name);
    }
    text += name == "response.output_text.delta" ? data["delta"].get<std::string>() : "";
    arguments +=
        name == "response.function_call_arguments.delta" ? data["delta"].get<std::string>() : "";
  }
  EXPECT_EQ(text, "Let me see.");
  EXPECT_EQ(arguments, "{\"city\": \"Oslo\"}");
  EXPECT_EQ(
      types,
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done", "response.output_item.done", "response.output_item.added",
          "response.function_call_arguments.delta", "response.function_call_arguments.done",
          "response.output_item.done", "response.completed"}));
  const Json output = events.back().second["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[1]["name"], "get_weather");
  EXPECT_EQ(output[1]["arguments"], arguments);
  // The next turn: the call and its result come back as items.
  Say("4 degrees.");
  Json input = Json::array({{{"role", "user"}, {"content", "Weather?"}}});
  input.push_back(output[0]);
  input.push_back(output[1]);
  input.push_back({{"type", "function_call_output"},
                   {"call_id", output[1]["call_id"]},
                   {"output", "4 degrees"}});
  EXPECT_EQ(Post("/v1/responses", {{"input", input}}).status, 200);
  EXPECT_NE(LastPrompt().find("Let me see.\n<tool_call>\n"), std::string::npos) << LastPrompt();
}

TEST_F(ToolCallsTest, StreamedMessageWithACall) {
  Start();
  Say(kCall);
  Json tool = {{"name", "get_weather"}, {"input_schema", kWeather["parameters"]}};
  const Json body = Chat({{"max_tokens", 2}, {"tools", Json::array({tool})}});
  std::vector<std::string> types;
  std::string text, input;
  Json last_delta;
  for (const auto& [name, data] : Events("/v1/messages", body)) {
    EXPECT_EQ(data["type"], name);
    if (types.empty() || types.back() != name) {
      types.push_back(name);
    }
    if (name == "content_block_delta") {
      text += data["delta"].value("text", "");
      input += data["delta"].value("partial_json", "");
    }
    last_delta = name == "message_delta" ? data : last_delta;
  }
  EXPECT_EQ(text, "Let me see.");
  EXPECT_EQ(input, "{\"city\": \"Oslo\"}");
  EXPECT_EQ(types, (std::vector<std::string>{
                       "message_start", "ping", "content_block_start", "content_block_delta",
                       "content_block_stop", "content_block_start", "content_block_delta",
                       "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(last_delta["delta"]["stop_reason"], "tool_use");
  EXPECT_GT(last_delta["usage"]["output_tokens"], 0);
  const Json whole = Post("/v1/messages", body).json();
  EXPECT_EQ(whole["content"][1]["input"], (Json{{"city", "Oslo"}}));
  // The result comes back as a block of the user.
  Json next = body;
  next["messages"].push_back({{"role", "assistant"}, {"content", whole["content"]}});
  next["messages"].push_back({{"role", "user"},
                              {"content", Json::array({{{"type", "tool_result"},
                                                        {"tool_use_id", whole["content"][1]["id"]},
                                                        {"content", "4 degrees"}}})}});
  EXPECT_EQ(Post("/v1/messages", next).status, 200);
  EXPECT_TRUE(
      LastPrompt().ends_with("<user><tool_response>\n4 degrees\n</tool_response></end><assistant>"))
      << LastPrompt();
}

}  // namespace
}  // namespace tandem::router
