#include <gtest/gtest.h>

#include "tests/contract/router/router_fixture.h"

namespace tandem::router {
namespace {

struct BadRequest {
  const char* path;
  std::string body;
  int status;
  const char* param;  // null: any
  const char* code;   // null: any
};

class ErrorsTest : public RouterFixture {
 protected:
  static void ExpectOpenAiShape(const HttpReply& reply) {
    const Json error = reply.json()["error"];
    for (const char* member : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(error.contains(member)) << reply.body;
    }
    EXPECT_TRUE(error["code"].is_null() || error["code"].is_string()) << reply.body;
  }
};

std::vector<BadRequest> BadRequests() {
  std::string words;
  for (int i = 0; i < 60'000; ++i) {
    words += "word ";
  }
  const char* text = "/v1/completions";
  const char* chat = "/v1/chat/completions";
  return {
      {text, "{not json", 400, nullptr, nullptr},
      {text, "", 400, nullptr, nullptr},
      {text, "[1,2]", 400, nullptr, nullptr},
      {text, R"({"prompt":"x","model":"no-such-model"})", 404, "model", "model_not_found"},
      {text, R"({"max_tokens":5})", 400, "prompt", nullptr},
      {text, R"({"prompt":"x","max_tokens":-1})", 400, "max_tokens", nullptr},
      {text, R"({"prompt":"x","max_tokens":0})", 400, "max_tokens", nullptr},
      {text, R"({"prompt":"x","max_tokens":1000000})", 400, "max_tokens", nullptr},
      {text, R"({"prompt":"x","max_tokens":1000000000.0})", 400, "max_tokens", nullptr},
      {text, R"({"prompt":"x","max_tokens":"five"})", 400, "max_tokens", nullptr},
      {text, R"({"prompt":"x","temperature":-0.5})", 400, "temperature", nullptr},
      {text, R"({"prompt":"x","top_p":1.5})", 400, "top_p", nullptr},
      {text, R"({"prompt":[1,2,999999999]})", 400, "prompt", nullptr},
      {text, R"({"prompt":[-5]})", 400, "prompt", nullptr},
      {text, R"({"prompt":")" + words + R"("})", 400, "prompt", "context_length_exceeded"},
      {text, R"({"prompt":"x","logit_bias":{"100000":1}})", 400, "logit_bias", nullptr},
      {text, R"({"prompt":"x","suffix":"y"})", 400, "suffix", nullptr},
      {chat, R"({"messages":[]})", 400, "messages", nullptr},
      {chat, R"({"messages":[{"role":"nobody","content":5}]})", 400, "messages[0]", nullptr},
      {chat, R"({"messages":"hello"})", 400, "messages", nullptr},
      {chat, R"({"messages":[{"role":"user","content":")" + words + R"("}]})", 400, "messages",
       "context_length_exceeded"},
      {chat, R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"x"}})", 400,
       "response_format", nullptr},
      {"/v1/nothing", R"({"prompt":"x"})", 404, nullptr, nullptr},
      {"/v1/embeddings", R"({"input":"x"})", 501, nullptr, "not_supported"},
      {"/tokenize", "{}", 400, "prompt", nullptr},
      {"/detokenize", R"({"tokens":[100000]})", 400, "tokens", nullptr},
  };
}

TEST_F(ErrorsTest, EveryBadRequest) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  for (const BadRequest& bad : BadRequests()) {
    const std::string shown = std::string(bad.path) + " " + bad.body.substr(0, 80);
    const HttpReply reply = PostText(bad.path, bad.body);
    EXPECT_EQ(reply.status, bad.status) << shown << ": " << reply.body;
    ExpectOpenAiShape(reply);
    const Json error = reply.json()["error"];
    if (bad.param != nullptr) {
      EXPECT_EQ(error["param"], bad.param) << shown;
    }
    if (bad.code != nullptr) {
      EXPECT_EQ(error["code"], bad.code) << shown;
    }
    EXPECT_TRUE(reply.headers.contains("x-request-id"));
  }
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}}).status, 200);
}

TEST_F(ErrorsTest, MethodsAndPaths) {
  AddWorker();
  StartRouter();
  const HttpReply get = Get("/v1/completions");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(get.headers.at("allow"), "POST");
  ExpectOpenAiShape(get);
  const HttpReply post = PostText("/health", "");
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(Get("/health?x=1").status, 200);
  EXPECT_EQ(Get("/version").json()["version"].is_string(), true);
  const Json models = Get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "fake-model");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Get("/v1/models/fake%2Dmodel").json()["id"], "fake-model");
  EXPECT_EQ(Get("/v1/models/other").json()["error"]["code"], "model_not_found");
}

TEST_F(ErrorsTest, RequestIds) {
  StartRouter(false);
  EXPECT_EQ(Get("/health", "X-Request-Id: abc-1\r\n").headers.at("x-request-id"), "abc-1");
  const std::string made = Get("/health", "x-request-id: a b\r\n").headers.at("x-request-id");
  EXPECT_NE(made, "a b");
  EXPECT_NE(made, Get("/health").headers.at("x-request-id"));
}

TEST_F(ErrorsTest, ApiKey) {
  options_.api_key = "secret-1";
  AddWorker();
  auto router = RouterServer::Start(
      [&] {
        options_.listen = "127.0.0.1:0";
        options_.metrics_host = "127.0.0.1";
        options_.metrics_port = 0;
        return options_;
      }(),
      &base::SystemClock());
  ASSERT_TRUE(router.ok());
  router_ = *std::move(router);
  ASSERT_TRUE(Eventually([&] { return Get("/ready").status == 200; }));
  for (const char* path : {"/v1/models", "/metrics", "/version", "/nothing"}) {
    for (const char* header :
         {"", "Authorization: Bearer wrong\r\n", "Authorization: Bearer secret-12\r\n",
          "Authorization: secret-1\r\n"}) {
      const HttpReply reply = Get(path, header);
      EXPECT_EQ(reply.status, 401) << path << header;
      EXPECT_EQ(reply.json()["error"]["type"], "authentication_error");
    }
  }
  EXPECT_EQ(PostText("/v1/completions", R"({"prompt":"x"})").status, 401);
  EXPECT_EQ(Get("/v1/models", "Authorization: Bearer secret-1\r\n").status, 200);
  EXPECT_EQ(
      PostText("/v1/completions", R"({"prompt":"x"})", "Authorization: Bearer secret-1\r\n").status,
      200);
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ErrorsTest, WithoutAWorker) {
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  EXPECT_EQ(Get("/health").status, 200);
  const HttpReply ready = Get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_TRUE(ready.headers.contains("retry-after"));
  const HttpReply reply = Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
  ExpectOpenAiShape(reply);
  EXPECT_TRUE(Get("/v1/models").json()["data"].empty());
}

TEST_F(ErrorsTest, TooManyRequests) {
  fakes::FakeWorker& worker = AddWorker();
  options_.max_concurrent_requests = 1;
  StartRouter();
  Gate gate;
  worker.SetScript([&](fakes::FakeCall& call) {
    EXPECT_TRUE(gate.Wait());
    return fakes::GenerateTokens(call, {40});
  });
  HttpClient first(router_->port());
  first.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":1})");
  ASSERT_TRUE(Eventually([&] { return router_->running() == 1; }));
  const HttpReply second = Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.json()["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(second.headers.contains("retry-after"));
  gate.Open();
  EXPECT_EQ(first.ReadReply().status, 200);
}

TEST_F(ErrorsTest, MetricsAreThereFromTheStart) {
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  const std::string text = Get("/metrics").body;
  for (const char* sample :
       {"tandem_router_requests_total{code=\"429\",endpoint=\"/v1/chat/completions\"} 0",
        "tandem_router_retries_total{reason=\"unavailable\"} 0",
        "tandem_router_resumes_total{reason=\"unavailable\"} 0",
        "tandem_router_worker_ready{worker=\"127.0.0.1:1\"} 0",
        "tandem_router_queue_depth{worker=\"127.0.0.1:1\"} 0",
        "tandem_router_inflight_requests{worker=\"127.0.0.1:1\"} 0"}) {
    EXPECT_NE(text.find(sample), std::string::npos) << sample;
  }
}

}  // namespace
}  // namespace tandem::router
