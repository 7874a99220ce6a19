#include "router/frontend/http/http_session.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <charconv>
#include <utility>

namespace tandem::router {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = 4096;
constexpr int64_t kLingerUs = 2'000'000;
constexpr size_t kMaxRequestIdBytes = 128;

bool IsUsableRequestId(std::string_view id) {
  if (id.empty() || id.size() > kMaxRequestIdBytes) {
    return false;
  }
  for (const char c : id) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\') {
      return false;
    }
  }
  return true;
}

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// The path of a request's target without its query; of http://host/path?query too (RFC 9112 3.2.2).
std::string_view PathOf(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (boost::beast::iequals(boost::beast::string_view(target.data(), target.size())
                                  .substr(0, std::min(target.size(), scheme.size())),
                              boost::beast::string_view(scheme.data(), scheme.size()))) {
      target.remove_prefix(scheme.size());
      target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
      target = target.substr(0, target.find('?'));
      return target.empty() ? "/" : target;
    }
  }
  return target.substr(0, target.find('?'));
}

void AppendHex(size_t value, std::string* out) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, 16).ptr;
  out->append(digits, end);
}

}  // namespace

std::string_view ReasonPhrase(int status) {
  return View(http::obsolete_reason(static_cast<http::status>(status)));
}

HttpSession::HttpSession(Socket socket, Context context)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      buffer_(context_.limits->max_header_bytes + kReadAheadBytes) {}

void HttpSession::CheckDeadlines(int64_t now_us) {
  const bool in_request = state_ == State::kHeader || state_ == State::kBody;
  const bool waiting = state_ == State::kIdle || state_ == State::kLingering;
  const bool late = now_us >= read_deadline_us_;
  const bool unwatched = state_ == State::kHandling && !watching_;
  if ((waiting && late) || (in_write_ && now_us >= write_deadline_us_) ||
      (unwatched && PeerHasLeft())) {
    Close();
  } else if (in_request && late) {
    // The read that is under way still uses the buffer: its end answers.
    timed_out_ = true;
    error_code ignored;
    socket_.cancel(ignored);
  }
}

bool HttpSession::PeerHasLeft() {
  pollfd peer{socket_.native_handle(), POLLRDHUP, 0};
  return poll(&peer, 1, 0) == 1;
}

void HttpSession::Close() {
  if (state_ == State::kClosed) {
    return;
  }
  const auto self = shared_from_this();
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  on_drained_ = nullptr;
  if (const auto on_gone = std::exchange(on_gone_, nullptr)) {
    on_gone();
  }
  context_.on_closed(this);
}

void HttpSession::ReadNext() {
  state_ = State::kIdle;
  read_deadline_us_ = now_us() + context_.limits->idle_timeout_us;
  if (watching_) {
    if (buffer_.size() > 0) {  // the next request came already; OnWatch goes on with it
      error_code ignored;
      socket_.cancel(ignored);
    }
    return;
  }
  if (buffer_.size() > 0) {
    ReadHeader();
  } else {
    Watch();
  }
}

void HttpSession::ReadHeader() {
  state_ = State::kHeader;
  read_deadline_us_ = now_us() + context_.limits->header_timeout_us;
  head_ = HttpRequest();
  request_id_.clear();
  close_after_ = false;
  timed_out_ = false;
  is_head_ = false;
  http11_ = true;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(context_.limits->max_header_bytes));
  parser_->body_limit(context_.limits->max_body_bytes);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHeader(error); });
}

void HttpSession::OnHeader(error_code error) {
  if (state_ != State::kHeader) {
    return;
  }
  if (error) {
    RefuseUnreadable(error);
    return;
  }
  const auto& message = parser_->get();
  head_.method = std::string(View(message.method_string()));
  head_.path = std::string(PathOf(View(message.target())));
  const std::string_view target = View(message.target());
  if (const size_t query = target.find('?'); query != std::string_view::npos) {
    head_.query = std::string(target.substr(query + 1));
  }
  head_.authorization = std::string(View(message[http::field::authorization]));
  head_.api_key = std::string(View(message["x-api-key"]));
  head_.origin = std::string(View(message[http::field::origin]));
  head_.preflight = message.method() == http::verb::options &&
                    !message[http::field::access_control_request_method].empty();
  head_.requested_headers = std::string(View(message[http::field::access_control_request_headers]));
  if (const std::string_view id = View(message["x-request-id"]); IsUsableRequestId(id)) {
    head_.request_id = std::string(id);
  }
  is_head_ = message.method() == http::verb::head;
  http11_ = message.version() >= 11;
  close_after_ = !message.keep_alive();
  if (ApiResult refused = context_.handler->CheckHead(head_)) {
    if (parser_->is_done()) {
      state_ = State::kHandling;
      Watch();
      context_.handler->OnRefused(head_, std::move(*refused), shared_from_this());
    } else {
      Refuse(std::move(*refused));
    }
    return;
  }
  if (parser_->is_done()) {
    OnBody({});
    return;
  }
  if (boost::beast::iequals(message[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    error_code ignored;  // an interim answer; if it does not fit, the client sends its body anyway
    socket_.non_blocking(true, ignored);
    socket_.send(asio::buffer(kContinue.data(), kContinue.size()), 0, ignored);
  }
  ReadBody();
}

void HttpSession::ReadBody() {
  state_ = State::kBody;
  timed_out_ = false;
  read_deadline_us_ = now_us() + context_.limits->body_timeout_us;
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, size_t) {
                     if (self->state_ == State::kBody) {
                       self->OnBody(error);
                     }
                   });
}

void HttpSession::OnBody(error_code error) {
  if (error) {
    RefuseUnreadable(error);
    return;
  }
  HttpRequest request = head_;
  request.body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::kHandling;
  Watch();
  context_.handler->OnRequest(std::move(request), shared_from_this());
}

void HttpSession::RefuseUnreadable(error_code error) {
  if (timed_out_ && error == asio::error::operation_aborted) {
    Refuse({408, "The request did not arrive in time.", "", "request_timeout"});
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    Refuse({431, "The request's headers are larger than " +
                     std::to_string(context_.limits->max_header_bytes) + " bytes."});
  } else if (error == http::error::body_limit) {
    Refuse({413, "The request's body is larger than " +
                     std::to_string(context_.limits->max_body_bytes) + " bytes."});
  } else if (error == http::error::end_of_stream || error == http::error::partial_message ||
             error.category() != make_error_code(http::error::end_of_stream).category()) {
    Close();
  } else {
    Refuse(InvalidRequest("The request is not valid HTTP/1.1: " + error.message() + "."));
  }
}

void HttpSession::Refuse(ApiError error) {
  state_ = State::kHandling;
  close_after_ = true;
  buffer_.consume(buffer_.size());
  Watch();
  context_.handler->OnRefused(head_, std::move(error), shared_from_this());
}

void HttpSession::Watch() {
  if (watching_ || buffer_.size() >= context_.limits->max_header_bytes) {
    return;
  }
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(kReadAheadBytes),
      [self = shared_from_this()](error_code error, size_t n) { self->OnWatch(error, n); });
}

void HttpSession::OnWatch(error_code error, size_t bytes) {
  watching_ = false;
  if (state_ == State::kClosed) {
    return;
  }
  const bool stopped = error == asio::error::operation_aborted && state_ == State::kIdle;
  if (error && !stopped) {
    Close();
    return;
  }
  buffer_.commit(bytes);
  if (state_ == State::kIdle) {
    ReadHeader();
    return;
  }
  if (state_ == State::kLingering || close_after_) {
    buffer_.consume(buffer_.size());
  }
  Watch();
}

void HttpSession::AppendHead(int status, std::string_view content_type) {
  close_after_ = close_after_ || context_.handler->draining();
  pending_ += "HTTP/1.1 ";
  pending_ += std::to_string(status);
  pending_ += ' ';
  pending_ += ReasonPhrase(status);
  pending_ += "\r\nContent-Type: ";
  pending_ += content_type;
  if (!request_id_.empty()) {
    pending_ += "\r\nx-request-id: ";
    pending_ += request_id_;
  }
  if (close_after_) {
    pending_ += "\r\nConnection: close";
  } else if (!http11_) {
    pending_ += "\r\nConnection: keep-alive";
  }
  pending_ += "\r\n";
  pending_ += context_.handler->ExtraHeaders(head_);
}

void HttpSession::Respond(HttpResponse response) {
  if (state_ != State::kHandling) {
    return;
  }
  AppendHead(response.status, response.content_type);
  for (const auto& [name, value] : response.headers) {
    pending_ += name;
    pending_ += ": ";
    pending_ += value;
    pending_ += "\r\n";
  }
  pending_ += "Content-Length: ";
  pending_ += std::to_string(response.body.size());
  pending_ += "\r\n\r\n";
  if (!is_head_) {
    pending_ += response.body;
  }
  Finish();
}

void HttpSession::BeginEvents() {
  chunked_ = http11_;
  close_after_ = close_after_ || !http11_;
  AppendHead(200, "text/event-stream; charset=utf-8");
  pending_ += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  pending_ += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
}

void HttpSession::Event(std::string_view event, std::string_view data) {
  if (chunked_) {
    const size_t name_size = event.empty() ? 0 : 8 + event.size();  // "event: " and the line's end
    AppendHex(name_size + 6 + data.size() + 2, &pending_);
    pending_ += "\r\n";
  }
  if (!event.empty()) {
    pending_ += "event: ";
    pending_ += event;
    pending_ += '\n';
  }
  pending_ += "data: ";
  pending_ += data;
  pending_ += chunked_ ? "\n\n\r\n" : "\n\n";
}

void HttpSession::Comment(std::string_view text) {
  if (chunked_) {
    AppendHex(2 + text.size() + 2, &pending_);
    pending_ += "\r\n";
  }
  pending_ += ": ";
  pending_ += text;
  pending_ += chunked_ ? "\n\n\r\n" : "\n\n";
}

void HttpSession::Flush() {
  was_congested_ = was_congested_ || congested();
  if (!in_write_ && state_ != State::kClosed && !pending_.empty()) {
    writing_.swap(pending_);
    pending_.clear();
    written_ = 0;
    WriteSome();
  }
}

void HttpSession::EndEvents() {
  if (chunked_) {
    pending_ += "0\r\n\r\n";
  }
  Finish();
}

void HttpSession::AbortEvents(const ApiError&) {
  close_after_ = true;
  Finish();
}

void HttpSession::Finish() {
  if (state_ != State::kHandling) {
    return;
  }
  state_ = State::kFinishing;
  on_gone_ = nullptr;
  on_drained_ = nullptr;
  Flush();
}

void HttpSession::WriteSome() {
  in_write_ = true;
  write_deadline_us_ = now_us() + context_.limits->write_timeout_us;
  socket_.async_write_some(
      asio::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](error_code error, size_t n) { self->OnWritten(error, n); });
}

void HttpSession::OnWritten(error_code error, size_t bytes) {
  in_write_ = false;
  if (state_ == State::kClosed) {
    return;
  }
  if (error) {
    Close();
    return;
  }
  written_ += bytes;
  if (written_ < writing_.size()) {
    WriteSome();
    return;
  }
  writing_.clear();
  written_ = 0;
  if (!pending_.empty()) {
    Flush();
  } else if (state_ == State::kFinishing) {
    OnAllWritten();
    return;
  }
  if (was_congested_ && !congested()) {
    was_congested_ = false;
    if (const auto on_drained =
            on_drained_) {  // a copy: an answer that ends in it drops the callback
      on_drained();
    }
  }
}

void HttpSession::OnAllWritten() {
  was_congested_ = false;
  if (writing_.capacity() > context_.limits->max_unsent_bytes) {  // a large answer's memory
    std::string().swap(writing_);
    std::string().swap(pending_);
  }
  if (!close_after_) {
    ReadNext();
    return;
  }
  // What the client still sends is read and dropped for a while: closing on unread data would
  // reset the connection and could destroy the answer on its way.
  state_ = State::kLingering;
  read_deadline_us_ = now_us() + kLingerUs;
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  buffer_.consume(buffer_.size());
  Watch();
}

}  // namespace tandem::router
