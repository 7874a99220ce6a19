#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/contract/router/router_fixture.h"

namespace tandem::router {
namespace {

// The fake's tokens are the letters I to P, beginning at the seed.
class GenerationTest : public RouterFixture {
 protected:
  void SetUp() override {
    worker_ = &AddWorker();
    StartRouter();
  }

  fakes::FakeWorker* worker_ = nullptr;
};

TEST_F(GenerationTest, Completion) {
  const HttpReply reply = Post("/v1/completions", {{"model", "fake-model"},
                                                   {"prompt", "hello world"},
                                                   {"max_tokens", 5},
                                                   {"temperature", 0},
                                                   {"seed", 0}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = reply.json();
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "fake-model");
  EXPECT_EQ(body["system_fingerprint"], "fake-1");
  EXPECT_EQ(body["choices"][0]["text"], "IJKLM");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  const Json& usage = body["usage"];
  EXPECT_EQ(usage["completion_tokens"], 5);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 5);
  const v1::GenerateRequest request = worker_->requests().at(0);
  EXPECT_EQ(usage["prompt_tokens"], request.prompt_token_ids_size());
  EXPECT_EQ(request.request_id(), reply.headers.at("x-request-id"));
  EXPECT_EQ(request.max_tokens(), 5);
  EXPECT_EQ(request.sampling().temperature(), 0);
  EXPECT_EQ(request.sampling().top_p(), 1);
}

TEST_F(GenerationTest, StreamedCompletionIsTheSameText) {
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"hello","max_tokens":20,"seed":3,"stream":true})");
  const HttpReply head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.headers.at("content-type").starts_with("text/event-stream"));
  EXPECT_EQ(head.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(head.headers.at("x-accel-buffering"), "no");
  const std::string text = StreamText(&client);
  EXPECT_TRUE(client.ended_properly());
  EXPECT_EQ(text, "LMNOPIJKLMNOPIJKLMNO");
  // The connection goes on.
  EXPECT_EQ(client.Request("GET", "/health").status, 200);
}

TEST_F(GenerationTest, Chat) {
  const HttpReply reply =
      Post("/v1/chat/completions",
           {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 3}, {"seed", 1}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json body = reply.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "JKL");
}

TEST_F(GenerationTest, ChatWithoutMaxTokensFillsTheContext) {
  const HttpReply reply =
      Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["total_tokens"], 512);
}

TEST_F(GenerationTest, StreamedChat) {
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/chat/completions",
                     R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"seed":0,
                     "stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(client.ReadHead().status, 200);
  std::vector<Json> chunks;
  while (const auto event = client.ReadEvent()) {
    if (*event != "[DONE]") {
      chunks.push_back(Json::parse(*event));
    }
  }
  ASSERT_EQ(chunks.size(), 5u);
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "I");
  EXPECT_TRUE(chunks[2]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "length");
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(chunks[i].contains("usage") && chunks[i]["usage"].is_null());
  }
  EXPECT_TRUE(chunks[4]["choices"].empty());
  EXPECT_EQ(chunks[4]["usage"]["completion_tokens"], 3);
}

TEST_F(GenerationTest, PromptsTimesN) {
  const HttpReply reply =
      Post("/v1/completions", {{"prompt", {"a", "b"}}, {"n", 2}, {"max_tokens", 2}, {"seed", 4}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json choices = reply.json()["choices"];
  ASSERT_EQ(choices.size(), 4u);
  const char* kTexts[] = {"MN", "NO", "MN", "NO"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(choices[i]["text"], kTexts[i]);
  }
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 8);
}

TEST_F(GenerationTest, WithoutASeedEachRequestGetsItsOwn) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
  }
  const auto requests = worker_->requests();
  EXPECT_NE(requests[0].sampling().seed(), requests[1].sampling().seed());
  EXPECT_EQ(requests[0].sampling().temperature(), 1);
}

TEST_F(GenerationTest, TokenIdsInAndOut) {
  const HttpReply reply =
      Post("/v1/completions",
           {{"prompt", {{5, 6}, {7}}}, {"max_tokens", 2}, {"seed", 0}, {"return_token_ids", true}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json choices = reply.json()["choices"];
  EXPECT_EQ(choices[0]["prompt_token_ids"], (Json{5, 6}));
  EXPECT_EQ(choices[0]["token_ids"], (Json{40, 41}));
  EXPECT_EQ(choices[1]["prompt_token_ids"], (Json{7}));
}

TEST_F(GenerationTest, StopStringEndsTheStreamAndTheWorkersCall) {
  worker_->SetScript([](fakes::FakeCall& call) {
    for (int at = 0; call.Write(fakes::FakeResponse(call.request(), {40, 41, 42, 43}, at)); ++at) {
    }
    return grpc::Status::CANCELLED;
  });
  HttpClient client(router_->port());
  client.SendRequest(
      "POST", "/v1/completions",
      R"({"prompt":"x","max_tokens":400,"seed":0,"stop":["KLI","LIJ"],"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(StreamText(&client), "IJ");
  EXPECT_TRUE(worker_->WaitForCancelled(1, 30'000'000));
}

TEST_F(GenerationTest, LogprobsAndPromptLogprobs) {
  const Json body = Post("/v1/completions", {{"prompt", {5, 6, 7}},
                                             {"max_tokens", 2},
                                             {"seed", 0},
                                             {"logprobs", 2},
                                             {"prompt_logprobs", 1}})
                        .json();
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{-0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], (Json{{"I", -0.5}, {"J", -1}}));
  ASSERT_EQ(choice["prompt_logprobs"].size(), 3u);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  EXPECT_EQ(choice["prompt_logprobs"][1]["6"]["logprob"], -1.5);
  EXPECT_EQ(choice["prompt_logprobs"][1]["6"]["rank"], 2);
  EXPECT_EQ(choice["prompt_logprobs"][1].begin().key(), "6");
}

TEST_F(GenerationTest, AClientThatLeavesCancelsTheWorkersCall) {
  worker_->SetScript([](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(Eventually([&] { return call.cancelled(); }));
    return grpc::Status::CANCELLED;
  });
  HttpClient streaming(router_->port());
  streaming.SendRequest("POST", "/v1/completions",
                        R"({"prompt":"x","max_tokens":400,"stream":true})");
  ASSERT_EQ(streaming.ReadHead().status, 200);
  ASSERT_TRUE(streaming.ReadEvent().has_value());
  streaming.Close();
  EXPECT_TRUE(worker_->WaitForCancelled(1, 30'000'000));
  HttpClient waiting(router_->port());
  waiting.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":400,"n":2})");
  ASSERT_TRUE(Eventually([&] { return worker_->requests().size() == 3; }));
  waiting.Close();
  EXPECT_TRUE(worker_->WaitForCancelled(3, 30'000'000));
  EXPECT_TRUE(Eventually([&] {
    return Metric("tandem_router_requests_total{code=\"499\",endpoint=\"/v1/completions\"}") == 2;
  }));
  EXPECT_TRUE(Eventually([&] { return router_->running() == 0; }));
}

TEST_F(GenerationTest, AnEventPerStepComesAtOnce) {
  Gate gate;
  worker_->SetScript([&](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(gate.Wait());
    call.Write(fakes::FakeResponse(call.request(), {41}, 1));
    return grpc::Status::OK;
  });
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"x","max_tokens":2,"seed":0,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(Json::parse(*client.ReadEvent())["choices"][0]["text"], "I");
  gate.Open();
  EXPECT_EQ(StreamText(&client), "J");
}

TEST_F(GenerationTest, TokenizeAndBack) {
  const Json tokens = Post("/tokenize", {{"prompt", "hello world"}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 512);
  const Json plain =
      Post("/tokenize", {{"content", "hello world"}, {"add_special_tokens", false}}).json();
  EXPECT_EQ(plain["count"].get<int>() + 1, tokens["count"].get<int>());
  EXPECT_EQ(Post("/detokenize", {{"tokens", plain["tokens"]}}).json()["prompt"], "hello world");
  const Json chat =
      Post("/tokenize", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}}).json();
  EXPECT_GT(chat["count"].get<int>(), 3);
}

TEST_F(GenerationTest, TheTemplatesVariablesMayLeaveTheGenerationPromptOut) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  const auto count = [&] { return Post("/tokenize", body).json()["count"].get<int>(); };
  const int with_prompt = count();
  body["chat_template_kwargs"]["add_generation_prompt"] = false;
  const int without = count();
  EXPECT_LT(without, with_prompt);
  body["add_generation_prompt"] = true;  // the request's own field wins
  EXPECT_EQ(count(), with_prompt);
  body["add_generation_prompt"] = false;
  EXPECT_EQ(count(), without);
}

TEST_F(GenerationTest, ALargePromptIsServedToo) {
  // More than what is read on the connection's own thread, and refused after tokenizing.
  std::string prompt;
  while (prompt.size() < 100'000) {
    prompt += "word ";
  }
  const HttpReply reply = Post("/v1/completions", {{"prompt", prompt}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
  const HttpReply padded = PostText(
      "/v1/completions", std::string(50'000, ' ') + R"({"prompt":"x","max_tokens":2,"seed":0})");
  ASSERT_EQ(padded.status, 200);
  EXPECT_EQ(padded.json()["choices"][0]["text"], "IJ");
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

class GoldenTextTest : public RouterFixture, public testing::WithParamInterface<const char*> {};

TEST_P(GoldenTextTest, TokenizeGivesTheReferencesTokens) {
  const std::string folder = std::string(TANDEM_TEST_DATA "/goldens/") + GetParam();
  const Json config = Json::parse(ReadFile(folder + "/tokenizer_config.json"));
  const Json goldens = Json::parse(ReadFile(folder + "/goldens.json"));
  fakes::FakeWorker::Options options = WorkerOptions();
  options.tokenizer_folder = folder;
  options.chat_template = config.at("chat_template").get<std::string>();
  options.vocab_size = 1000;
  AddWorker(options);
  StartRouter();
  for (const Json& golden : goldens.at("tokenizer_cases")) {
    EXPECT_EQ(Post("/tokenize", {{"prompt", golden["text"]}}).json()["tokens"], golden["token_ids"])
        << golden["text"];
  }
  for (const Json& golden : goldens.at("chat_cases")) {
    Json body = golden.value("options", Json::object());
    body["messages"] = golden["messages"];
    const HttpReply reply = Post("/tokenize", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["tokens"], golden["token_ids"]) << golden["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTextTest,
                         testing::Values("llama2-like", "llama3-like", "mistral-like", "qwen2-like",
                                         "qwen3-like"));

class NoTokenizerTest : public RouterFixture {};

TEST_F(NoTokenizerTest, PromptsAreIds) {
  fakes::FakeWorker::Options options = WorkerOptions();
  options.tokenizer_folder.clear();
  AddWorker(options);
  StartRouter();
  const HttpReply text = Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(text.status, 400);
  EXPECT_EQ(text.json()["error"]["param"], "prompt");
  const HttpReply ids =
      Post("/v1/completions",
           {{"prompt", {1, 2}}, {"max_tokens", 2}, {"seed", 0}, {"return_token_ids", true}});
  ASSERT_EQ(ids.status, 200) << ids.body;
  EXPECT_EQ(ids.json()["choices"][0]["token_ids"], (Json{40, 41}));
}

}  // namespace
}  // namespace tandem::router
