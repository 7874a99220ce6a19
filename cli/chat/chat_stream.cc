#include "cli/chat/chat_stream.h"

#include <poll.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cli/bench/sse_parser.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Json = nlohmann::ordered_json;

constexpr int kPollMs = 100;
constexpr size_t kMaxErrorBytes = 64u << 10;

absl::Status Failed(const ChatServer& server, const std::string& what) {
  return absl::UnavailableError(
      absl::StrCat("http://", server.url.host, ":", server.url.port, ": ", what));
}

std::string RequestText(const ChatServer& server, const Json& body) {
  http::request<http::string_body> request(http::verb::post, "/v1/chat/completions", 11);
  request.set(http::field::host, server.url.host);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  if (!server.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + server.api_key);
  }
  request.body() = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  request.prepare_payload();
  std::ostringstream text;
  text << request;
  return text.str();
}

// One answer, from the connection to its end.
class AnswerReader {
 public:
  AnswerReader(const ChatServer& server, const std::atomic<bool>& stop,
               const std::function<void(ChatText, std::string_view)>& on_text)
      : server_(server), stop_(stop), on_text_(on_text), socket_(context_) {
    // The reader bounds what it keeps. (No limit at all would refuse bodies of a known length.)
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
  }

  absl::Status Run(const std::string& request) {
    error_code error;
    tcp::resolver resolver(context_);
    const auto endpoints = resolver.resolve(server_.url.host, server_.url.port, error);
    if (!error) {
      asio::connect(socket_, endpoints, error);
    }
    if (!error) {
      asio::write(socket_, asio::buffer(request), error);
    }
    if (error) {
      return Failed(server_, error.message());
    }
    while (!parser_.is_done()) {
      TANDEM_ASSIGN_OR_RETURN(const bool more, ReadSome());
      if (!more || stop_) {
        break;
      }
    }
    return stop_ ? absl::OkStatus() : Outcome();
  }

 private:
  // False at the connection's end.
  absl::StatusOr<bool> ReadSome() {
    const int64_t deadline_us = base::SystemClock().NowUs() + server_.silence_timeout_us;
    pollfd readable{socket_.native_handle(), POLLIN, 0};
    while (poll(&readable, 1, kPollMs) <= 0) {
      if (stop_) {
        return false;
      }
      if (base::SystemClock().NowUs() >= deadline_us) {
        return Failed(server_, "no answer");
      }
    }
    error_code error;
    const size_t bytes = socket_.read_some(buffer_.prepare(4096), error);
    if (error == asio::error::eof) {
      parser_.put_eof(error);
      return false;
    }
    if (error) {
      return Failed(server_, error.message());
    }
    buffer_.commit(bytes);
    return Parse();
  }

  absl::StatusOr<bool> Parse() {
    while (buffer_.size() > 0 && !parser_.is_done()) {
      char piece[4096];
      parser_.get().body().data = piece;
      parser_.get().body().size = sizeof piece;
      parser_.get().body().more = true;
      error_code error;
      const size_t taken = parser_.put(buffer_.data(), error);
      buffer_.consume(taken);
      if (error == http::error::need_more) {
        return true;
      }
      if (error && error != http::error::need_buffer) {
        return Failed(server_, error.message());
      }
      if (parser_.is_header_done()) {
        Take(std::string_view(piece, sizeof piece - parser_.get().body().size));
      }
    }
    return true;
  }

  void Take(std::string_view piece) {
    if (parser_.get().result() != http::status::ok) {
      if (refusal_.size() < kMaxErrorBytes) {
        refusal_ += piece;
      }
      return;
    }
    for (const std::string& data : events_.Feed(piece)) {
      TakeEvent(data);
    }
  }

  void TakeEvent(const std::string& data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      return;
    }
    if (event.contains("error")) {
      refusal_ = data;
      return;
    }
    const Json choices = event.value("choices", Json::array());
    if (!choices.is_array() || choices.empty() || !choices[0].is_object()) {
      return;
    }
    const Json delta = choices[0].value("delta", Json::object());
    for (const auto& [name, kind] :
         {std::pair("reasoning", ChatText::kReasoning), std::pair("content", ChatText::kContent)}) {
      const Json text = delta.value(name, Json());
      if (text.is_string() && !text.get_ref<const std::string&>().empty()) {
        on_text_(kind, text.get_ref<const std::string&>());
      }
    }
  }

  absl::Status Outcome() const {
    if (done_ && refusal_.empty()) {
      return absl::OkStatus();
    }
    if (refusal_.empty()) {
      return Failed(server_, "the answer broke off");
    }
    const Json body = Json::parse(refusal_, nullptr, /*allow_exceptions=*/false);
    const Json error = body.is_object() ? body.value("error", Json()) : Json();
    const Json message = error.is_object() ? error.value("message", Json()) : Json();
    return absl::InvalidArgumentError(message.is_string()
                                          ? message.get<std::string>()
                                          : absl::StrCat("HTTP ", parser_.get().result_int()));
  }

  const ChatServer& server_;
  const std::atomic<bool>& stop_;
  const std::function<void(ChatText, std::string_view)>& on_text_;
  asio::io_context context_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  SseParser events_;
  std::string refusal_;
  bool done_ = false;
};

}  // namespace

absl::Status StreamChat(const ChatServer& server, const Json& body, const std::atomic<bool>& stop,
                        const std::function<void(ChatText, std::string_view)>& on_text) {
  return AnswerReader(server, stop, on_text).Run(RequestText(server, body));
}

}  // namespace tandem::cli
