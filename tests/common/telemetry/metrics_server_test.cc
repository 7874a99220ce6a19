#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio.hpp>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Tcp = boost::asio::ip::tcp;

class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() {
    auto started = MetricsServer::Start(
        "127.0.0.1", 0, registry.get(), [this] { return healthy.load(); },
        [this] { return ready.load(); });
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }

  // Sends raw text and returns all that comes back until the server closes.
  std::string Exchange(const std::string& request) {
    boost::asio::io_context context;
    Tcp::socket socket(context);
    socket.connect(
        {boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server->port())});
    boost::asio::write(socket, boost::asio::buffer(request));
    std::string reply;
    boost::system::error_code error;
    boost::asio::read(socket, boost::asio::dynamic_buffer(reply), error);
    return reply;
  }
  std::string Get(const std::string& target, const std::string& method = "GET") {
    return Exchange(method + " " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  std::unique_ptr<Registry> registry = Registry::Create();
  std::atomic<bool> healthy{true};
  std::atomic<bool> ready{false};
  std::unique_ptr<MetricsServer> server;
};

TEST_F(MetricsServerTest, ServesMetrics) {
  registry->counter("t_total", "T.").Add(5);
  const std::string reply = Get("/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(reply, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(reply, HasSubstr("t_total 5"));
  EXPECT_THAT(Get("/metrics?x=1"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsServerTest, ProbesFollowTheProcess) {
  EXPECT_THAT(Get("/health"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/ready"), StartsWith("HTTP/1.1 503"));
  ready.store(true);
  healthy.store(false);
  EXPECT_THAT(Get("/health"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get("/ready"), StartsWith("HTTP/1.1 200"));
}

TEST_F(MetricsServerTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metrics", "POST"), StartsWith("HTTP/1.1 405"));
  const std::string head = Get("/health", "HEAD");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(head, testing::EndsWith("\r\n\r\n"));
  EXPECT_EQ(Exchange("nonsense\r\n\r\n"), "");
  EXPECT_EQ(Exchange("GET / HTTP/1.1\r\nX: " + std::string(10000, 'x') + "\r\n\r\n"), "");
}

TEST_F(MetricsServerTest, KeepsAConnectionForSeveralRequests) {
  const std::string one = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string last = "GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  const std::string replies = Exchange(one + one + last);
  EXPECT_THAT(replies, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(replies, testing::ContainsRegex("HTTP/1.1 503"));
}

TEST_F(MetricsServerTest, TakenPortIsUnavailable) {
  const auto yes = [] { return true; };
  const auto second = MetricsServer::Start("127.0.0.1", server->port(), registry.get(), yes, yes);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  const auto bad_host = MetricsServer::Start("999.1.1.1", 0, registry.get(), yes, yes);
  EXPECT_EQ(bad_host.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::telemetry
