#include <gtest/gtest.h>

#include "tests/contract/router/router_fixture.h"

namespace tandem::router {
namespace {

constexpr char kOneToken[] = R"({"prompt":"x","max_tokens":1,"seed":0})";

class ConnectionTest : public RouterFixture {};

TEST_F(ConnectionTest, KeepAliveAndPipelining) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Request("POST", "/v1/completions", kOneToken).status, 200);
  }
  client.SendRequest("POST", "/v1/completions", kOneToken, "x-request-id: first\r\n");
  client.SendRequest("GET", "/health", "", "x-request-id: second\r\n");
  EXPECT_EQ(client.ReadReply().headers["x-request-id"], "first");
  EXPECT_EQ(client.ReadReply().headers["x-request-id"], "second");
  EXPECT_EQ(client.Request("GET", "/health", "", "Connection: close\r\n").headers["connection"],
            "close");
  EXPECT_TRUE(client.WaitForClose());
}

std::string Raw(const std::string& path, const std::string& id, const std::string& body) {
  return (body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\nHost: x\r\nx-request-id: " + id +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST_F(ConnectionTest, RequestsInOneWriteAreAnsweredInOrder) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  const std::string stream = R"({"prompt":"x","max_tokens":3,"seed":0,"stream":true})";
  client.Send(Raw("/health", "0", "") + Raw("/v1/completions", "1", kOneToken) +
              Raw("/v1/completions", "2", stream) + Raw("/v1/nothing", "3", "") +
              Raw("/v1/completions", "4", kOneToken) + Raw("/health", "5", ""));
  for (const char* id : {"0", "1", "2", "3", "4", "5"}) {
    const HttpReply reply = client.ReadReply();
    EXPECT_EQ(reply.status, *id == '3' ? 404 : 200) << id;
    EXPECT_TRUE(reply.complete) << id;
    EXPECT_EQ(reply.headers.at("x-request-id"), id);
  }
  // More than may be read ahead, and a request that is cut by that bound.
  std::string many;
  for (int i = 0; i < 500; ++i) {
    many += Raw("/health", std::to_string(i), "");
  }
  std::thread sender([&] { client.Send(many); });
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(client.ReadReply().headers["x-request-id"], std::to_string(i));
  }
  sender.join();
}

TEST_F(ConnectionTest, TheNextRequestComesDuringAResponse) {
  fakes::FakeWorker& worker = AddWorker();
  Gate gate;
  worker.SetScript([&](fakes::FakeCall& call) {
    call.Write(fakes::FakeResponse(call.request(), {40}, 0));
    EXPECT_TRUE(gate.Wait());
    call.Write(fakes::FakeResponse(call.request(), {41}, 1));
    return grpc::Status::OK;
  });
  StartRouter();
  const std::string plain = R"({"prompt":"x","max_tokens":2,"seed":0})";
  const std::string stream = R"({"prompt":"x","max_tokens":2,"seed":0,"stream":true})";
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions", stream);
  ASSERT_EQ(client.ReadHead().status, 200);
  ASSERT_TRUE(client.ReadEvent());
  const std::string next = Raw("/v1/completions", "a", plain);
  client.Send(next.substr(0, 20));  // a part first
  HttpClient(router_->port()).Request("GET", "/health");
  client.Send(next.substr(20) + Raw("/health", "b", ""));
  gate.Open();
  EXPECT_EQ(StreamText(&client), "J");
  EXPECT_EQ(client.ReadReply().headers["x-request-id"], "a");
  EXPECT_EQ(client.ReadReply().headers["x-request-id"], "b");
}

TEST_F(ConnectionTest, AClientThatLeavesBehindPipelinedBytesIsNoticed) {
  fakes::FakeWorker& worker = AddWorker();
  worker.SetScript([](fakes::FakeCall& call) {
    return Eventually([&] { return call.cancelled(); }) ? grpc::Status::CANCELLED
                                                        : grpc::Status::OK;
  });
  StartRouter();
  int cancelled = 0;
  // A few bytes, and just as many as are read ahead.
  for (const size_t bytes : {size_t{1}, options_.http.max_header_bytes}) {
    HttpClient client(router_->port());
    client.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":2})");
    ASSERT_TRUE(Eventually([&] { return worker.requests().size() > size_t(cancelled); }));
    client.Send(std::string(bytes, 'G'));
    client.Close();
    EXPECT_TRUE(worker.WaitForCancelled(++cancelled, 30'000'000)) << bytes;
  }
}

TEST_F(ConnectionTest, AbsoluteTargets) {
  StartRouter(false);
  HttpClient client(router_->port());
  for (const auto& [target, status] :
       std::vector<std::pair<std::string, int>>{{"http://x/health", 200},
                                                {"HTTPS://x:80/health?y=/z", 200},
                                                {"/health?u=http://x/", 200},
                                                {"http://x/nothing", 404},
                                                {"http://x", 200},
                                                {"http://x?/health", 200},
                                                {"http:/health", 404}}) {
    EXPECT_EQ(client.Request("GET", target).status, status) << target;
  }
}

TEST_F(ConnectionTest, OneByteAtATime) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                              std::to_string(sizeof kOneToken - 1) + "\r\n\r\n" + kOneToken;
  for (const char c : request) {
    client.Send(std::string_view(&c, 1));
  }
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST_F(ConnectionTest, ChunkedBodyAndExpectContinue) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.Send("10\r\n{\"prompt\":\"x\",\"m\r\n16\r\nax_tokens\":1,\"seed\":0}\r\n0\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 200);
  client.SendRequest("POST", "/v1/completions", kOneToken, "Expect: 100-continue\r\n");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST_F(ConnectionTest, OversizedBodies) {
  options_.http.max_body_bytes = 1000;
  StartRouter(false);
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions", std::string(1001, ' '));
  const HttpReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(client.WaitForClose());
  HttpClient chunked(router_->port());
  chunked.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send("7d0\r\n" + std::string(2000, ' ') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.ReadReply().status, 413);
  // A body that only announces itself does not have to come.
  HttpClient announcing(router_->port());
  announcing.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n");
  EXPECT_EQ(announcing.ReadReply().status, 413);
}

TEST_F(ConnectionTest, OversizedHeadersAndGarbage) {
  options_.http.max_header_bytes = 4096;
  StartRouter(false);
  HttpClient client(router_->port());
  client.Send("GET /health HTTP/1.1\r\nx: " + std::string(10'000, 'a') + "\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 431);
  EXPECT_TRUE(client.WaitForClose());
  HttpClient garbage(router_->port());
  garbage.Send("\x16\x03\x01 not http at all\r\n\r\n");
  const HttpReply reply = garbage.ReadReply();
  EXPECT_EQ(reply.status, 400);
  EXPECT_TRUE(reply.json().contains("error"));
}

TEST_F(ConnectionTest, SlowSendersAreToldAndClosed) {
  options_.http.header_timeout_us = 50'000;
  options_.http.body_timeout_us = 50'000;
  options_.http.idle_timeout_us = 50'000;
  StartRouter(false);
  for (const char* start : {"", "GET /hea", "POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
                            "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"}) {
    HttpClient client(router_->port());
    client.Send(start);
    const HttpReply reply = client.ReadReply();
    if (*start == '\0') {
      EXPECT_EQ(reply.status, 0);
    } else {
      ASSERT_EQ(reply.status, 408) << start;
      EXPECT_EQ(reply.headers.at("connection"), "close");
      EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
    }
    EXPECT_TRUE(client.WaitForClose()) << start;
  }
  HttpClient idle(router_->port());
  EXPECT_EQ(idle.Request("GET", "/health").status, 200);
  EXPECT_EQ(idle.ReadReply().status, 0);
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ConnectionTest, ASlowReaderIsCancelledAndDelaysNobody) {
  fakes::FakeWorker& worker = AddWorker();
  worker.SetScript([](fakes::FakeCall& call) {
    const bool endless = call.request().max_tokens() > 1;
    int at = 0;
    do {
      if (!call.Write(fakes::FakeResponse(call.request(), {40}, at))) {
        return grpc::Status::CANCELLED;
      }
      at = endless ? 1 : at + 1;
    } while (endless);
    return grpc::Status::OK;
  });
  options_.num_threads = 1;
  options_.http.write_timeout_us = 100'000;
  StartRouter();
  HttpClient slow(router_->port(), 4096);
  slow.SendRequest("POST", "/v1/completions", R"({"prompt":"x","max_tokens":400,"stream":true})");
  ASSERT_EQ(slow.ReadHead().status, 200);
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
  EXPECT_TRUE(worker.WaitForCancelled(1, 30'000'000));
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ConnectionTest, AFastReaderGetsALongStreamWhole) {
  fakes::FakeWorker::Options options = WorkerOptions();
  options.max_model_len = 100'000;
  AddWorker(options);
  StartRouter();
  HttpClient client(router_->port());
  client.SendRequest("POST", "/v1/completions",
                     R"({"prompt":"x","max_tokens":20000,"seed":0,"stream":true})");
  ASSERT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(StreamText(&client).size(), 20'000u);
}

TEST_F(ConnectionTest, TooManyConnections) {
  options_.http.max_connections = 2;
  StartRouter(false);
  HttpClient first(router_->port());
  HttpClient second(router_->port());
  EXPECT_EQ(first.Request("GET", "/health").status, 200);
  EXPECT_EQ(second.Request("GET", "/health").status, 200);
  HttpClient third(router_->port());
  const HttpReply reply = third.ReadReply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.json()["error"]["type"], "server_error");
  EXPECT_TRUE(reply.complete);
  EXPECT_TRUE(third.WaitForClose());
  first.Close();
  EXPECT_TRUE(Eventually([&] { return Get("/health").status == 200; }));
}

TEST_F(ConnectionTest, Http10ClosesAfterTheStream) {
  AddWorker();
  StartRouter();
  HttpClient client(router_->port());
  const std::string body = R"({"prompt":"x","max_tokens":2,"seed":0,"stream":true})";
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpReply head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_FALSE(head.headers.contains("transfer-encoding"));
  EXPECT_TRUE(client.WaitForClose());
}

}  // namespace
}  // namespace tandem::router
