// The load generator against a small HTTP server of the test's own.
#include "cli/bench/load_generator.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::json;
using testing::HasSubstr;

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

// Answers each request by a function, on one thread of its own. Connections stay open for
// `requests_per_connection` requests.
class FakeServer {
 public:
  using Handler = std::function<Response(const Request&)>;

  explicit FakeServer(Handler handler, int requests_per_connection = 1000)
      : handler_(std::move(handler)),
        requests_per_connection_(requests_per_connection),
        acceptor_(context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    Accept();
    thread_ = std::thread([this] { context_.run(); });
  }
  ~FakeServer() {
    context_.stop();
    thread_.join();
  }

  LoadOptions Options() {
    LoadOptions options;
    options.url = {"127.0.0.1", std::to_string(acceptor_.local_endpoint().port())};
    options.model = "m";
    options.timeout_us = 20'000'000;
    options.max_connections = 8;
    return options;
  }
  int connections() const { return connections_; }

 private:
  struct Session {
    explicit Session(tcp::socket s) : stream(std::move(s)) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
    Request request;
    Response response;
    int served = 0;
  };

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!error) {
        ++connections_;
        Read(std::make_shared<Session>(std::move(socket)));
        Accept();
      }
    });
  }

  void Read(const std::shared_ptr<Session>& session) {
    session->request = {};
    http::async_read(session->stream, session->buffer, session->request,
                     [this, session](error_code error, size_t) {
                       if (!error) {
                         Answer(session);
                       }
                     });
  }

  void Answer(const std::shared_ptr<Session>& session) {
    session->response = handler_(session->request);
    session->response.prepare_payload();
    http::async_write(session->stream, session->response,
                      [this, session](error_code error, size_t) {
                        if (!error && ++session->served < requests_per_connection_) {
                          Read(session);
                        }
                      });
  }

  Handler handler_;
  const int requests_per_connection_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

Response Text(std::string body, http::status status = http::status::ok) {
  Response response(status, 11);
  response.body() = std::move(body);
  return response;
}

// A stream with a token per event and usage at the end.
Response StreamAnswer(const Request& request) {
  const json body = json::parse(request.body());
  std::string events;
  for (int64_t i = 0; i < body["max_tokens"].get<int64_t>(); ++i) {
    events += "data: {\"choices\": [{\"text\": \"\", \"token_ids\": [7]}]}\n\n";
  }
  const json usage = {{"prompt_tokens", body["prompt"].size()},
                      {"completion_tokens", body["max_tokens"]}};
  events += "data: {\"choices\": [], \"usage\": " + usage.dump() + "}\n\ndata: [DONE]\n\n";
  return Text(events);
}

TEST(CompletionBodyTest, SaysWhatToGenerateAndDiffersByIndex) {
  LoadOptions options;
  options.model = "m\"x";
  const json first = json::parse(CompletionBody(options, {0, 12, 5}, 0));
  EXPECT_EQ(first["model"], "m\"x");
  EXPECT_EQ(first["max_tokens"], 5);
  EXPECT_EQ(first["temperature"], 0);
  EXPECT_EQ(first["ignore_eos"], true);
  EXPECT_EQ(first["stream"], true);
  EXPECT_EQ(first["stream_options"]["include_usage"], true);
  ASSERT_EQ(first["prompt"].size(), 12u);
  for (const json& id : first["prompt"]) {
    EXPECT_GE(id.get<int>(), 100);
    EXPECT_LT(id.get<int>(), 1000);
  }
  EXPECT_EQ(first, json::parse(CompletionBody(options, {0, 12, 5}, 0)));
  EXPECT_NE(first["prompt"], json::parse(CompletionBody(options, {0, 12, 5}, 1))["prompt"]);
  options.stream = false;
  EXPECT_FALSE(json::parse(CompletionBody(options, {0, 1, 1}, 0)).contains("stream_options"));
}

TEST(LoadGeneratorTest, ReusesConnectionsAndCountsTokens) {
  FakeServer server(StreamAnswer);
  LoadOptions options = server.Options();
  options.concurrency = 3;
  const auto outcome = RunLoad(options, std::vector<PlannedRequest>(30, {0, 4, 6}));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(outcome->requests.size(), 30u);
  for (const RequestOutcome& request : outcome->requests) {
    EXPECT_TRUE(request.ok) << request.error;
    EXPECT_EQ(request.prompt_tokens, 4);
    EXPECT_EQ(request.output_tokens, 6);
    EXPECT_EQ(request.inter_token_us.size(), 5u);
    ASSERT_TRUE(request.first_token_us.has_value());
    EXPECT_LE(*request.first_token_us, request.total_us);
  }
  EXPECT_EQ(server.connections(), 3);
}

TEST(LoadGeneratorTest, ConnectsAgainWhereTheServerClosed) {
  FakeServer server(StreamAnswer, /*requests_per_connection=*/1);
  LoadOptions options = server.Options();
  options.concurrency = 2;
  const auto outcome = RunLoad(options, std::vector<PlannedRequest>(10, {0, 1, 1}));
  ASSERT_TRUE(outcome.ok());
  for (const RequestOutcome& request : outcome->requests) {
    EXPECT_TRUE(request.ok) << request.error;
  }
  EXPECT_EQ(server.connections(), 10);
}

TEST(LoadGeneratorTest, ArrivalsWithinTheConnectionLimit) {
  FakeServer server(StreamAnswer);
  LoadOptions options = server.Options();
  options.max_connections = 2;
  std::vector<PlannedRequest> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back({i * 500, 2, 2});
  }
  const auto outcome = RunLoad(options, requests);
  ASSERT_TRUE(outcome.ok());
  EXPECT_GE(outcome->duration_us, 19 * 500);
  EXPECT_LE(server.connections(), 2);
  for (const RequestOutcome& request : outcome->requests) {
    EXPECT_TRUE(request.ok) << request.error;
  }
}

TEST(LoadGeneratorTest, WholeAnswersWithoutAStream) {
  FakeServer server([](const Request& request) {
    const json body = json::parse(request.body());
    EXPECT_EQ(body["stream"], false);
    return Text("{\"choices\": [{}], \"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 9}}");
  });
  LoadOptions options = server.Options();
  options.concurrency = 1;
  options.stream = false;
  const auto outcome = RunLoad(options, {{0, 2, 9}});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->requests[0].ok) << outcome->requests[0].error;
  EXPECT_EQ(outcome->requests[0].output_tokens, 9);
  EXPECT_FALSE(outcome->requests[0].first_token_us.has_value());
}

TEST(LoadGeneratorTest, FailuresAreOutcomes) {
  const std::pair<Response, const char*> cases[] = {
      {Text("{\"error\": {}}", http::status::too_many_requests), "HTTP 429"},
      {Text("data: {\"choices\": []}\n\n"), "without [DONE]"},
      {Text("data: {\"error\": {\"message\": \"worker died\"}}\n\n"), "worker died"},
      {Text("data: nonsense\n\ndata: [DONE]\n\n"), "no JSON object"}};
  for (const auto& [answer, message] : cases) {
    FakeServer server([&answer = answer](const Request&) { return answer; });
    LoadOptions options = server.Options();
    options.concurrency = 1;
    const auto outcome = RunLoad(options, {{0, 1, 1}, {0, 1, 1}});
    ASSERT_TRUE(outcome.ok());
    for (const RequestOutcome& request : outcome->requests) {
      EXPECT_FALSE(request.ok);
      EXPECT_THAT(request.error, HasSubstr(message));
    }
  }
}

TEST(LoadGeneratorTest, NobodyListening) {
  LoadOptions options;
  {
    FakeServer server(StreamAnswer);
    options = server.Options();
  }
  options.concurrency = 1;
  const auto outcome = RunLoad(options, {{0, 1, 1}});
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(outcome->requests[0].error, HasSubstr("connect"));
  EXPECT_FALSE(FetchServedModel(options).ok());
}

TEST(FetchServedModelTest, ReadsIdAndContext) {
  FakeServer server([](const Request& request) {
    EXPECT_EQ(request.target(), "/v1/models");
    EXPECT_EQ(request[http::field::authorization], "Bearer key");
    return Text("{\"data\": [{\"id\": \"tiny\", \"max_model_len\": 512}]}");
  });
  LoadOptions options = server.Options();
  options.api_key = "key";
  const auto model = FetchServedModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->id, "tiny");
  EXPECT_EQ(model->max_model_len, 512);
  FakeServer refusing([](const Request&) { return Text("{}", http::status::unauthorized); });
  EXPECT_THAT(std::string(FetchServedModel(refusing.Options()).status().message()),
              HasSubstr("HTTP 401"));
}

}  // namespace
}  // namespace tandem::cli
