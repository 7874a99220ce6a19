#include "cli/chat/chat_stream.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Gives one connection `answer`, whatever it asks.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer)
      : acceptor_(context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        port_(acceptor_.local_endpoint().port()),
        thread_([this, answer = std::move(answer)] {
          tcp::socket socket(context_);
          boost::system::error_code error;
          acceptor_.accept(socket, error);
          asio::streambuf request;
          asio::read_until(socket, request, "\r\n\r\n", error);
          asio::write(socket, asio::buffer(answer), error);
        }) {}
  ~OneAnswer() { thread_.join(); }

  ChatServer server() const {
    ChatServer server;
    server.url.host = "127.0.0.1";
    server.url.port = std::to_string(port_);
    return server;
  }

 private:
  asio::io_context context_;
  tcp::acceptor acceptor_;
  const int port_;
  std::thread thread_;
};

absl::Status Ask(const std::string& answer, std::string* text) {
  OneAnswer peer(answer);
  const std::atomic<bool> stop = false;
  return StreamChat(peer.server(), {{"messages", {}}}, stop,
                    [text](ChatText, std::string_view piece) { *text += piece; });
}

TEST(ChatStreamTest, TextComesUntilDone) {
  std::string text;
  const absl::Status status =
      Ask("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
          "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: ping\n\n"
          "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n",
          &text);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, "ab");
}

TEST(ChatStreamTest, RefusalsAreSaidInTheServersWords) {
  const std::string body = R"({"error":{"message":"The model `x` does not exist."}})";
  std::string text;
  const absl::Status status =
      Ask(absl::StrCat("HTTP/1.1 404 Not Found\r\nContent-Length: ", body.size(), "\r\n\r\n", body),
          &text);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "The model `x` does not exist.");
}

TEST(ChatStreamTest, AStreamWithoutAnEndIsAnError) {
  std::string text;
  const absl::Status status = Ask(
      "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", &text);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(text, "a");
}

}  // namespace
}  // namespace tandem::cli
