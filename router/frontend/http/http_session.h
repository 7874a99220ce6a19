#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "router/frontend/http/http_types.h"

namespace tandem::router {

// One connection: reads a request, lets the handler answer it, goes on with the next. Everything
// runs on the thread of its io_context, which calls CheckDeadlines every now and then.
class HttpSession : public Exchange, public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  struct Context {
    boost::asio::io_context* io = nullptr;
    int io_index = 0;
    const HttpLimits* limits = nullptr;
    HttpHandler* handler = nullptr;
    const base::Clock* clock = nullptr;
    // The connection is closed; called once.
    std::function<void(HttpSession*)> on_closed;
  };

  HttpSession(Socket socket, Context context);

  void Start() { ReadNext(); }
  void CheckDeadlines(int64_t now_us);
  // Closes at once; the handler hears of it by on_gone.
  void Close();

  void set_request_id(const std::string& id) override { request_id_ = id; }
  void set_on_gone(std::function<void()> on_gone) override { on_gone_ = std::move(on_gone); }
  void set_on_drained(std::function<void()> f) override { on_drained_ = std::move(f); }
  bool gone() const override { return state_ == State::kClosed; }
  void Respond(HttpResponse response) override;
  void BeginEvents() override;
  void Event(std::string_view event, std::string_view data) override;
  void Comment(std::string_view text) override;
  void Flush() override;
  bool congested() const override { return unsent() >= context_.limits->max_unsent_bytes; }
  void EndEvents() override;
  void AbortEvents(const ApiError& error) override;
  boost::asio::io_context& io() override { return *context_.io; }
  int io_index() const override { return context_.io_index; }

 private:
  enum class State { kIdle, kHeader, kBody, kHandling, kFinishing, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void ReadNext();
  void ReadHeader();
  void OnHeader(boost::system::error_code error);
  void ReadBody();
  void OnBody(boost::system::error_code error);
  void RefuseUnreadable(boost::system::error_code error);
  void Refuse(ApiError error);
  // Reads ahead while a request is handled or none is there: a client that leaves is noticed at
  // once.
  void Watch();
  // For when nothing more may be read ahead.
  bool PeerHasLeft();
  void OnWatch(boost::system::error_code error, size_t bytes);
  void AppendHead(int status, std::string_view content_type);
  void Finish();
  void WriteSome();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void OnAllWritten();
  size_t unsent() const { return pending_.size() + writing_.size() - written_; }
  int64_t now_us() const { return context_.clock->NowUs(); }

  Socket socket_;
  Context context_;
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest head_;
  bool watching_ = false;
  bool timed_out_ = false;    // the request's reading was stopped
  bool close_after_ = false;  // this response is the connection's last
  bool chunked_ = true;       // HTTP/1.1 events
  bool http11_ = true;
  bool is_head_ = false;
  bool in_write_ = false;
  bool was_congested_ = false;
  std::string request_id_;
  std::string pending_;  // to be written next
  std::string writing_;
  size_t written_ = 0;  // of writing_
  int64_t read_deadline_us_ = 0;
  int64_t write_deadline_us_ = 0;
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

}  // namespace tandem::router
