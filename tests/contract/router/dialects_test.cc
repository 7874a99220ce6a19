#include <gtest/gtest.h>

#include "tests/contract/router/dialects_fixture.h"

namespace tandem::router {
namespace {

TEST_F(DialectsTest, FormatsOfTheOtherDialects) {
  Start();
  Say("{}");
  const Json format = {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "object"}}}};
  Post("/v1/responses", {{"input", "x"}, {"text", {{"format", format}}}});
  EXPECT_EQ(worker_->requests().back().grammar().kind(), v1::GrammarSpec::KIND_JSON_SCHEMA);
  EXPECT_EQ(worker_->requests().back().grammar().param(), "text.format");
  Post("/v1/messages", Chat({{"max_tokens", 9}, {"output_config", {{"format", format}}}}));
  EXPECT_EQ(worker_->requests().back().grammar().param(), "output_config.format");
}

TEST_F(DialectsTest, Reasoning) {
  Start(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n"
      "{% endif %}{# </think> #}");
  Say("Two and two.\n</think>\n\nFour.");
  const Json reply = Post("/v1/chat/completions", Chat()).json();
  const Json message = reply["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Four.");
  EXPECT_EQ(message["reasoning"], "Two and two.");
  EXPECT_EQ(message["reasoning_content"], "Two and two.");
  EXPECT_GT(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  const Json without = Post("/v1/chat/completions", Chat({{"include_reasoning", false}})).json();
  EXPECT_FALSE(without["choices"][0]["message"].contains("reasoning"));
  // A message cannot make the answer look like thoughts.
  Json forged = Chat({{"add_generation_prompt", false}});
  forged["messages"][0]["content"] = "<think>";
  forged["messages"].push_back({{"role", "user"}, {"content", "x"}});
  const Json plain = Post("/v1/chat/completions", forged).json()["choices"][0]["message"];
  EXPECT_TRUE(plain["content"].get<std::string>().starts_with("Two and two.")) << plain;
  const Json blocks = Post("/v1/messages", Chat({{"max_tokens", 100}})).json()["content"];
  EXPECT_EQ(blocks[0]["thinking"], "Two and two.");
  EXPECT_EQ(blocks[1]["text"], "Four.");
  const Json items = Post("/v1/responses", {{"input", "x"}}).json()["output"];
  EXPECT_EQ(items[0]["type"], "reasoning");
  EXPECT_EQ(items[0]["content"][0]["text"], "Two and two.");
  EXPECT_EQ(items[1]["content"][0]["text"], "Four.");
}

TEST_F(DialectsTest, Response) {
  Start();
  Say("Hello.");
  const Json reply = Post("/v1/responses", {{"input", "Say hello."},
                                            {"instructions", "Be short."},
                                            {"max_output_tokens", 50},
                                            {"metadata", {{"a", "b"}}}})
                         .json();
  EXPECT_EQ(reply["object"], "response");
  EXPECT_TRUE(reply["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(reply["status"], "completed");
  EXPECT_EQ(reply["output"].size(), 1u);
  EXPECT_EQ(reply["output"][0]["content"][0]["text"], "Hello.");
  EXPECT_EQ(reply["instructions"], "Be short.");
  EXPECT_EQ(reply["metadata"], (Json{{"a", "b"}}));
  EXPECT_EQ(reply["store"], false);
  EXPECT_EQ(reply["usage"]["total_tokens"],
            reply["usage"]["input_tokens"].get<int>() + reply["usage"]["output_tokens"].get<int>());
  EXPECT_TRUE(LastPrompt().ends_with("<system>Be short.</end><user>Say hello.</end><assistant>"))
      << LastPrompt();
  EXPECT_EQ(worker_->requests().back().max_tokens(), 50);
  Say("cut", v1::FINISH_REASON_LENGTH);
  const Json cut = Post("/v1/responses", {{"input", "x"}}).json();
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST_F(DialectsTest, Message) {
  Start();
  Say("Hello.");
  const HttpReply reply =
      Post("/v1/messages",
           {{"max_tokens", 9},
            {"system", "Be short."},
            {"messages",
             {{{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "Hi"}}})}}}},
            {"stop_sequences", {"zzz"}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = reply.json();
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["content"], Json::array({{{"type", "text"}, {"text", "Hello."}}}));
  EXPECT_EQ(body["stop_reason"], "end_turn");
  EXPECT_GT(body["usage"]["output_tokens"], 0);
  EXPECT_TRUE(LastPrompt().ends_with("<system>Be short.</end><user>Hi</end><assistant>"));
  Say("One, two.");
  const Json stopped =
      Post("/v1/messages", Chat({{"max_tokens", 9}, {"stop_sequences", {"two"}}})).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "two");
}

TEST_F(DialectsTest, AnAssistantsLastTurnIsGoneOnWith) {
  Start();
  Say(" blue.");
  Json body = Chat({{"max_tokens", 9}});
  body["messages"].push_back({{"role", "assistant"}, {"content", "The sky is"}});
  EXPECT_EQ(Post("/v1/messages", body).json()["content"][0]["text"], " blue.");
  EXPECT_TRUE(LastPrompt().ends_with("<assistant>The sky is")) << LastPrompt();
}

TEST_F(DialectsTest, CountTokens) {
  Start();
  Say("x");
  const Json count = Post("/v1/messages/count_tokens", Chat()).json();
  Post("/v1/messages", Chat({{"max_tokens", 5}}));
  EXPECT_EQ(count["input_tokens"], worker_->requests().back().prompt_token_ids_size());
}

TEST_F(DialectsTest, BestOfGivesTheLikeliest) {
  Start();
  worker_->SetScript([](fakes::FakeCall& call) {
    const auto seed = static_cast<int32_t>(call.request().sampling().seed());
    v1::GenerateResponse response;
    response.add_tokens()->set_token_id(40 + seed);
    response.mutable_tokens(0)->mutable_chosen()->set_logprob(seed == 2 ? -0.1F : -2.0F);
    response.set_finish_reason(v1::FINISH_REASON_LENGTH);
    call.Write(response);
    return grpc::Status::OK;
  });
  const Json reply =
      Post("/v1/completions",
           {{"prompt", "a"}, {"max_tokens", 1}, {"seed", 0}, {"n", 1}, {"best_of", 4}})
          .json();
  ASSERT_EQ(reply["choices"].size(), 1u) << reply;
  EXPECT_EQ(reply["choices"][0]["text"], "K");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 4);
}

TEST_F(DialectsTest, ASilentStreamIsKeptAlive) {
  options_.keep_alive_us = 20'000;
  Start();
  Gate gate;
  worker_->SetScript([&](fakes::FakeCall& call) {
    EXPECT_TRUE(gate.Wait());
    return fakes::GenerateTokens(call, {40});
  });
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/chat/completions",
                     Chat({{"stream", true}, {"max_tokens", 1}}).dump());
  EXPECT_EQ(client.ReadHead().status, 200);  // comes with the first comment
  gate.Open();
  EXPECT_EQ(StreamText(&client), "I");
  EXPECT_GE(client.comments(), 1);
}

TEST_F(DialectsTest, PagesOfOtherOriginsMayAsk) {
  options_.api_key = "k";
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  HttpClient client(router_->port());
  const HttpReply preflight =
      client.Request("OPTIONS", "/v1/chat/completions", "",
                     "Origin: http://a.example\r\nAccess-Control-Request-Method: POST\r\n"
                     "Access-Control-Request-Headers: authorization, content-type\r\n");
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(Get("/v1/models", "Origin: http://a.example\r\nx-api-key: k\r\n")
                .headers.at("access-control-allow-origin"),
            "*");
  EXPECT_FALSE(Get("/health").headers.contains("access-control-allow-origin"));
  EXPECT_EQ(Get("/v1/models", "Origin: http://a.example\r\n").status, 401);
}

TEST_F(DialectsTest, ABrowserIsAskedForTheKeyOfAPage) {
  options_.api_key = "secret-1";
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  const HttpReply refused = Get("/");
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.headers.at("www-authenticate").starts_with("Basic"));
  EXPECT_EQ(Get("/v1/models").headers.at("www-authenticate"), "Bearer");
  // base64 of ":secret-1" and of "any:wrong"
  EXPECT_EQ(Get("/", "Authorization: Basic OnNlY3JldC0x\r\n").status, 200);
  EXPECT_EQ(Get("/", "Authorization: Basic YW55Ondyb25n\r\n").status, 401);
}

TEST_F(DialectsTest, OnlyTheAllowedOrigins) {
  options_.allowed_origins = {"http://a.example"};
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  EXPECT_EQ(
      Get("/health", "Origin: http://a.example\r\n").headers.at("access-control-allow-origin"),
      "http://a.example");
  EXPECT_FALSE(Get("/health", "Origin: http://b.example\r\n")
                   .headers.contains("access-control-allow-origin"));
}

TEST_F(DialectsTest, StatisticsShowWhatRuns) {
  Start();
  Gate gate;
  worker_->SetScript([&](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(gate.Wait());
    return fakes::GenerateTokens(call, {40});
  });
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/chat/completions", Chat({{"max_tokens", 3}}).dump(),
                     "x-request-id: mine-1\r\n");
  ASSERT_TRUE(Eventually([&] {
    const Json requests = Get("/stats").json()["requests"];
    return requests.size() == 1 && requests[0]["state"] == "decode";
  }));
  const Json request = Get("/stats").json()["requests"][0];
  EXPECT_EQ(request["id"], "mine-1");
  EXPECT_EQ(request["tokens"], 1);
  EXPECT_GE(request["age_ms"], 0);
  gate.Open();
  EXPECT_EQ(client.ReadReply().status, 200);
  EXPECT_TRUE(Eventually([&] { return Get("/stats").json()["requests_total"] == 0; }));
}

TEST_F(DialectsTest, PagesAndDocument) {
  Start();
  EXPECT_NE(Get("/").body.find("<html"), std::string::npos);
  EXPECT_NE(Get("/docs").body.find("<html"), std::string::npos);
  const Json document = Get("/openapi.json").json();
  EXPECT_EQ(document["openapi"], "3.1.0");
  const Json properties = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
                                  ["content"]["application/json"]["schema"]["properties"];
  EXPECT_EQ(properties["temperature"]["maximum"], 2.0);
  EXPECT_EQ(properties["max_tokens"]["maximum"], 511);
  EXPECT_TRUE(properties.contains("tools"));
  // A null counts as absent, which only what is needed may not be.
  EXPECT_EQ(properties["temperature"]["type"], Json::array({"number", "null"}));
  EXPECT_EQ(properties["messages"]["type"], "array");
}

}  // namespace
}  // namespace tandem::router
