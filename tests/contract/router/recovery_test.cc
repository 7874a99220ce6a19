#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/contract/router/router_fixture.h"

extern char** environ;

namespace tandem::router {
namespace {

// A fake worker in a process that can die.
class WorkerProcess {
 public:
  WorkerProcess(const std::string& address, int die_after_tokens) {
    const std::string die = std::to_string(die_after_tokens);
    std::vector<std::string> words = {FAKE_WORKER_PROGRAM,
                                      "--listen",
                                      address,
                                      "--tokenizer",
                                      TANDEM_TEST_DATA "/goldens/llama3-like",
                                      "--die-after-tokens=" + die,
                                      "--max-model-len",
                                      "512"};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, FAKE_WORKER_PROGRAM, nullptr, nullptr, arguments.data(), environ),
              0);
  }
  ~WorkerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Join();
    }
  }
  // Waits until it died.
  void Join() {
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

// As the router sees the fake process: without a chat template, so that the models are equal.
fakes::FakeWorker::Options PlainOptions() {
  fakes::FakeWorker::Options options;
  options.tokenizer_folder = TANDEM_TEST_DATA "/goldens/llama3-like";
  return options;
}

class RecoveryTest : public RouterFixture {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tandem-router-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    socket_ = "unix:" + folder_ + "/w.sock";
  }
  void TearDown() override {
    router_.reset();
    workers_.clear();
    unlink((folder_ + "/w.sock").c_str());
    rmdir(folder_.c_str());
  }

  std::string folder_;
  std::string socket_;
};

TEST_F(RecoveryTest, AnotherWorkerContinuesTheStream) {
  WorkerProcess dying(socket_, 3);
  options_.workers = {socket_};
  fakes::FakeWorker& other = AddWorker(PlainOptions());
  other.SetServing(false);
  StartRouter(false);
  ASSERT_TRUE(Eventually([&] { return router_->ready(); }));
  other.SetServing(true);
  ASSERT_TRUE(Eventually([&] { return AllReady(); }));
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"hello","max_tokens":12,"seed":2,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(StreamText(&client), "KLMNOPIJKLMN");
  dying.Join();
  ASSERT_EQ(other.requests().size(), 1u);
  const v1::GenerateRequest request = other.requests()[0];
  const int resumed = request.generated_token_ids_size();
  EXPECT_LE(resumed, 3);
  EXPECT_EQ(request.max_tokens(), 12);
  EXPECT_EQ(request.sampling().seed(), 2u);
  const std::string counter =
      resumed > 0 ? "tandem_router_resumes_total" : "tandem_router_retries_total";
  EXPECT_EQ(Metric(counter + "{reason=\"unavailable\"}"), 1);
}

TEST_F(RecoveryTest, TheSameWorkerContinuesAfterItsRestart) {
  auto worker = std::make_unique<WorkerProcess>(socket_, 3);
  options_.workers = {socket_};
  StartRouter();
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"hello","max_tokens":12,"seed":2,"n":2})");
  worker->Join();
  worker = std::make_unique<WorkerProcess>(socket_, -1);
  const HttpReply reply = client.ReadReply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"][0]["text"], "KLMNOPIJKLMN");
  EXPECT_EQ(reply.json()["choices"][1]["text"], "LMNOPIJKLMNO");
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 24);
}

TEST_F(RecoveryTest, WithoutAnotherWorkerTheClientIsTold) {
  fakes::FakeWorker& worker = AddWorker();
  options_.resume_timeout_us = 0;
  StartRouter();
  worker.SetScript([](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    return grpc::Status(grpc::StatusCode::INTERNAL, "secret address 10.0.0.1");
  });
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  ASSERT_TRUE(client.ReadEvent().has_value());
  const auto event = client.ReadEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(client.event_name(), "error");
  EXPECT_EQ(Json::parse(*event)["error"]["type"], "server_error");
  EXPECT_EQ(event->find("10.0.0.1"), std::string::npos);
  EXPECT_FALSE(client.ReadEvent().has_value());
  EXPECT_FALSE(client.ended_properly());
  const HttpReply whole = Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 9}});
  EXPECT_EQ(whole.status, 502);
  EXPECT_EQ(whole.json()["error"]["type"], "server_error");
}

TEST_F(RecoveryTest, ADrainingWorkerPassesRequestsOn) {
  fakes::FakeWorker& draining = AddWorker();
  StartRouter();
  // Its refusal arrives before the router heard of the drain.
  draining.SetScript([&](fakes::FakeCall&) {
    draining.SetServing(false);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  });
  const HttpReply alone = Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(alone.status, 503);
  EXPECT_TRUE(alone.headers.contains("retry-after"));
  EXPECT_EQ(Metric("tandem_router_retries_total{reason=\"unavailable\"}"), 1);
}

TEST_F(RecoveryTest, AFullWorkerPassesRequestsOn) {
  const auto full = [](fakes::FakeCall&) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
  };
  fakes::FakeWorker& first = AddWorker();
  fakes::FakeWorker& second = AddWorker();
  first.SetScript(full);
  StartRouter();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  }
  second.SetScript(full);
  const HttpReply reply = Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 429);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
}

TEST_F(RecoveryTest, AWorkersRefusalBecomes400WithItsField) {
  fakes::FakeWorker& worker = AddWorker();
  StartRouter();
  worker.SetScript([](fakes::FakeCall&) {
    v1::ErrorDetail detail;
    detail.set_param("max_tokens");
    detail.set_code("context_length_exceeded");
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too long", detail.SerializeAsString());
  });
  const HttpReply reply = Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "max_tokens");
  EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
}

TEST_F(RecoveryTest, RoundRobinAndReadiness) {
  fakes::FakeWorker& first = AddWorker();
  fakes::FakeWorker& second = AddWorker();
  StartRouter();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  }
  EXPECT_EQ(first.requests().size(), 2u);
  EXPECT_EQ(second.requests().size(), 2u);
  first.SetServing(false);
  second.SetServing(false);
  EXPECT_TRUE(Eventually([&] { return Get("/ready").status == 503; }));
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}}).status, 503);
  second.SetServing(true);
  EXPECT_TRUE(Eventually([&] { return Get("/ready").status == 200; }));
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_EQ(second.requests().size(), 3u);
}

TEST_F(RecoveryTest, DrainLetsRunningStreamsEnd) {
  fakes::FakeWorker& worker = AddWorker();
  StartRouter();
  Gate gate;
  worker.SetScript([&](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(gate.Wait());
    call.Write(fakes::FakeResponse(call.request(), {41}, 1));
    return grpc::Status::OK;
  });
  HttpClient running(router_->port());
  running.SendRequest("POST", "/v1/completions",
                      R"({"prompt":"x","max_tokens":2,"seed":0,"stream":true})");
  ASSERT_EQ(running.ReadHead().status, 200);
  ASSERT_TRUE(running.ReadEvent().has_value());
  router_->BeginDrain();
  EXPECT_EQ(Get("/ready").status, 503);
  const HttpReply refused = Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(router_->running(), 1);
  gate.Open();
  EXPECT_EQ(StreamText(&running), "J");
  EXPECT_TRUE(Eventually([&] { return router_->running() == 0; }));
}

TEST_F(RecoveryTest, WhatADrainCutsOffEndsWithAnError) {
  fakes::FakeWorker& worker = AddWorker();
  StartRouter();
  worker.SetScript([](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(Eventually([&] { return call.cancelled(); }));
    return grpc::Status::CANCELLED;
  });
  HttpClient stream(router_->port());
  stream.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"stream":true})");
  ASSERT_EQ(stream.ReadHead().status, 200);
  ASSERT_TRUE(stream.ReadEvent().has_value());
  HttpClient whole(router_->port());
  whole.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9})");
  ASSERT_TRUE(Eventually([&] { return worker.requests().size() == 2; }));
  router_->BeginDrain();
  EXPECT_EQ(router_->running(), 2);
  EXPECT_EQ(router_->CutOff(), 2);
  EXPECT_EQ(router_->CutOff(), 0);
  router_->Stop();
  const auto event = stream.ReadEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(stream.event_name(), "error");
  EXPECT_EQ(Json::parse(*event)["error"]["type"], "server_error");
  EXPECT_FALSE(stream.ReadEvent().has_value());
  EXPECT_FALSE(stream.ended_properly());
  const HttpReply reply = whole.ReadReply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(reply.headers.contains("retry-after"));
  EXPECT_EQ(reply.json()["error"]["type"], "server_error");
  EXPECT_TRUE(worker.WaitForCancelled(2, 30'000'000));
}

TEST_F(RecoveryTest, StopCancelsWhatRuns) {
  fakes::FakeWorker& worker = AddWorker();
  StartRouter();
  worker.SetScript([](fakes::FakeCall& call) {
    EXPECT_TRUE(Eventually([&] { return call.cancelled(); }));
    return grpc::Status::CANCELLED;
  });
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":2})");
  ASSERT_TRUE(Eventually([&] { return worker.requests().size() == 1; }));
  router_->Stop();
  EXPECT_TRUE(worker.WaitForCancelled(1, 30'000'000));
  EXPECT_TRUE(client.WaitForClose());
}

}  // namespace
}  // namespace tandem::router
