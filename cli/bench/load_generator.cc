#include "cli/bench/load_generator.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/completion_reader.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::json;

constexpr size_t kMaxErrorBody = 4096;

// Token ids that every vocabulary has and none uses for control.
constexpr int kFirstTokenId = 100;
constexpr int kNumTokenIds = 400;

int64_t NowUs() { return base::SystemClock().NowUs(); }

std::unique_ptr<beast::tcp_stream> NewStream(asio::io_context* context) {
  return std::make_unique<beast::tcp_stream>(*context);
}

// One request from its due time to the end of its answer. Keeps itself alive by its handlers.
class RequestRun : public std::enable_shared_from_this<RequestRun> {
 public:
  using Stream = std::unique_ptr<beast::tcp_stream>;
  // Gets the outcome, and the connection when it can serve another request.
  using Done = std::function<void(RequestOutcome outcome, Stream reusable)>;

  RequestRun(const LoadOptions& options, const tcp::resolver::results_type& endpoints, Done done)
      : options_(options), endpoints_(endpoints), done_(std::move(done)) {}

  void Start(std::string body, int64_t due_us, Stream idle, asio::io_context* context) {
    context_ = context;
    reader_ = std::make_unique<CompletionReader>(options_.stream, due_us);
    request_.method(http::verb::post);
    request_.target("/v1/completions");
    request_.version(11);
    request_.set(http::field::host, options_.url.host);
    request_.set(http::field::content_type, "application/json");
    if (!options_.api_key.empty()) {
      request_.set(http::field::authorization, "Bearer " + options_.api_key);
    }
    request_.body() = std::move(body);
    request_.prepare_payload();
    if (idle != nullptr) {
      stream_ = std::move(idle);
      reused_ = true;
      stream_->expires_after(std::chrono::microseconds(options_.timeout_us));
      Write();
    } else {
      Connect();
    }
  }

 private:
  void Connect() {
    reused_ = false;
    stream_ = NewStream(context_);
    stream_->expires_after(std::chrono::microseconds(options_.timeout_us));
    stream_->async_connect(endpoints_,
                           [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                             if (error) {
                               return self->Fail("connect", error);
                             }
                             error_code ignored;
                             self->stream_->socket().set_option(tcp::no_delay(true), ignored);
                             self->Write();
                           });
  }

  void Write() {
    http::async_write(*stream_, request_, [self = shared_from_this()](error_code error, size_t) {
      error ? self->FailOrReconnect("write", error) : self->ReadHeader();
    });
  }

  void ReadHeader() {
    parser_.emplace();
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // the reader bounds what it keeps
    http::async_read_header(*stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (error) {
                                return self->FailOrReconnect("read", error);
                              }
                              self->status_ = static_cast<int>(self->parser_->get().result_int());
                              self->ReadBody();
                            });
  }

  void ReadBody() {
    if (parser_->is_done()) {
      return Finish();
    }
    parser_->get().body().data = chunk_;
    parser_->get().body().size = sizeof(chunk_);
    parser_->get().body().more = true;
    http::async_read_some(*stream_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) {
                            if (error && error != http::error::need_buffer) {
                              return self->Fail("read", error);
                            }
                            self->TakeBody();
                            self->ReadBody();
                          });
  }

  void TakeBody() {
    const size_t size = sizeof(chunk_) - parser_->get().body().size;
    if (status_ != 200) {
      error_body_.append(chunk_, std::min(size, kMaxErrorBody - error_body_.size()));
      return;
    }
    reader_->Feed(std::string_view(chunk_, size), NowUs());
  }

  void Finish() {
    RequestOutcome outcome;
    if (status_ == 200) {
      outcome = reader_->Finish(NowUs());
    } else {
      outcome.error = absl::StrCat("HTTP ", status_, ": ", error_body_);
    }
    const bool keep = parser_->get().keep_alive();
    done_(std::move(outcome), keep ? std::move(stream_) : nullptr);
  }

  // A server may close an idle connection at any time: the first failure on one says nothing.
  void FailOrReconnect(const char* what, error_code error) {
    if (reused_ && error != beast::error::timeout) {
      buffer_.clear();
      return Connect();
    }
    Fail(what, error);
  }

  void Fail(const char* what, error_code error) {
    RequestOutcome outcome;
    outcome.error = absl::StrCat(what, ": ", error.message());
    done_(std::move(outcome), nullptr);
  }

  const LoadOptions& options_;
  const tcp::resolver::results_type& endpoints_;
  Done done_;
  asio::io_context* context_ = nullptr;
  Stream stream_;
  bool reused_ = false;
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  std::unique_ptr<CompletionReader> reader_;
  char chunk_[16384];
  int status_ = 0;
  std::string error_body_;
};

// Starts the requests when they are due and collects their outcomes. One thread.
class LoadRun {
 public:
  LoadRun(const LoadOptions& options, const std::vector<PlannedRequest>& requests)
      : options_(options), requests_(requests), timer_(context_) {
    outcome_.requests.resize(requests.size());
  }

  absl::StatusOr<LoadOutcome> Run() {
    error_code error;
    tcp::resolver resolver(context_);
    endpoints_ = resolver.resolve(options_.url.host, options_.url.port, error);
    if (error) {
      return absl::NotFoundError(absl::StrCat("host ", options_.url.host, ": ", error.message()));
    }
    start_us_ = NowUs();
    StartDue();
    context_.run();
    outcome_.duration_us = NowUs() - start_us_;
    return std::move(outcome_);
  }

 private:
  int64_t Limit() const {
    return options_.concurrency > 0 ? options_.concurrency : options_.max_connections;
  }

  // Starts what is due and within the limit, then waits for the next arrival.
  void StartDue() {
    while (next_ < requests_.size() && in_flight_ < Limit()) {
      const int64_t now_us = NowUs();
      const int64_t due_us =
          options_.concurrency > 0 ? now_us : start_us_ + requests_[next_].arrival_us;
      if (due_us > now_us) {
        timer_.expires_after(std::chrono::microseconds(due_us - now_us));
        timer_.async_wait([this](error_code error) {
          if (!error) {
            StartDue();
          }
        });
        return;
      }
      StartOne(next_++, due_us);
    }
  }

  void StartOne(size_t index, int64_t due_us) {
    ++in_flight_;
    RequestRun::Stream idle;
    if (!idle_.empty()) {
      idle = std::move(idle_.back());
      idle_.pop_back();
    }
    const auto run = std::make_shared<RequestRun>(
        options_, endpoints_,
        [this, index, due_us](RequestOutcome outcome, RequestRun::Stream reusable) {
          outcome.total_us = NowUs() - due_us;
          outcome_.requests[index] = std::move(outcome);
          if (reusable != nullptr) {
            idle_.push_back(std::move(reusable));
          }
          --in_flight_;
          StartDue();
        });
    run->Start(CompletionBody(options_, requests_[index], index), due_us, std::move(idle),
               &context_);
  }

  const LoadOptions& options_;
  const std::vector<PlannedRequest>& requests_;
  asio::io_context context_{1};
  asio::steady_timer timer_;
  tcp::resolver::results_type endpoints_;
  std::vector<RequestRun::Stream> idle_;
  LoadOutcome outcome_;
  size_t next_ = 0;
  int64_t in_flight_ = 0;
  int64_t start_us_ = 0;
};

}  // namespace

absl::StatusOr<ServerUrl> ParseServerUrl(const std::string& url) {
  const std::string scheme = "http://";
  if (url.compare(0, scheme.size(), scheme) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(url, ": allowed is http://HOST[:PORT]"));
  }
  std::string rest = url.substr(scheme.size());
  while (!rest.empty() && rest.back() == '/') {
    rest.pop_back();
  }
  ServerUrl server{rest, "80"};
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    server = {rest.substr(0, colon), rest.substr(colon + 1)};
  }
  if (server.host.size() > 2 && server.host.front() == '[' && server.host.back() == ']') {
    server.host = server.host.substr(1, server.host.size() - 2);
  }
  const bool port_ok = !server.port.empty() && server.port.size() <= 5 &&
                       std::all_of(server.port.begin(), server.port.end(),
                                   [](char c) { return c >= '0' && c <= '9'; });
  if (server.host.empty() || server.host.find('/') != std::string::npos || !port_ok) {
    return absl::InvalidArgumentError(absl::StrCat(url, ": allowed is http://HOST[:PORT]"));
  }
  return server;
}

std::string CompletionBody(const LoadOptions& options, const PlannedRequest& planned,
                           uint64_t index) {
  std::mt19937_64 random(options.seed * 0x9E3779B97F4A7C15u + index);
  std::string ids;
  for (int64_t i = 0; i < planned.prompt_tokens; ++i) {
    absl::StrAppend(&ids, i == 0 ? "" : ",",
                    kFirstTokenId + static_cast<int>(random() % kNumTokenIds));
  }
  json body = {{"model", options.model},
               {"max_tokens", planned.output_tokens},
               {"temperature", 0},
               {"ignore_eos", true},
               {"stream", options.stream}};
  if (options.stream) {
    body["stream_options"] = {{"include_usage", true}};
    body["return_token_ids"] = true;  // a chunk for every token, also where its text is held back
  }
  std::string text = body.dump();
  text.pop_back();
  return absl::StrCat(text, ",\"prompt\":[", ids, "]}");
}

absl::StatusOr<ServedModel> FetchServedModel(const LoadOptions& options) {
  asio::io_context context;
  error_code error;
  tcp::resolver resolver(context);
  const auto endpoints = resolver.resolve(options.url.host, options.url.port, error);
  const auto failed = [&](absl::string_view what) {
    return absl::UnavailableError(
        absl::StrCat("GET http://", options.url.host, ":", options.url.port, "/v1/models: ", what));
  };
  if (error) {
    return failed(error.message());
  }
  beast::tcp_stream stream(context);
  http::request<http::empty_body> request(http::verb::get, "/v1/models", 11);
  request.set(http::field::host, options.url.host);
  request.set(http::field::connection, "close");
  if (!options.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + options.api_key);
  }
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  // Asynchronous for its deadline: the blocking calls of tcp_stream have none.
  stream.expires_after(std::chrono::seconds(10));
  stream.async_connect(endpoints, [&](error_code connect_error, const tcp::endpoint&) {
    error = connect_error;
    if (error) return;
    http::async_write(stream, request, [&](error_code write_error, size_t) {
      error = write_error;
      if (error) return;
      http::async_read(stream, buffer, response,
                       [&](error_code read_error, size_t) { error = read_error; });
    });
  });
  context.run();
  if (error) {
    return failed(error.message());
  }
  if (response.result_int() != 200) {
    return failed(
        absl::StrCat("HTTP ", response.result_int(), " ", response.body().substr(0, 500)));
  }
  return ParseServedModel(response.body());
}

absl::StatusOr<LoadOutcome> RunLoad(const LoadOptions& options,
                                    const std::vector<PlannedRequest>& requests) {
  return LoadRun(options, requests).Run();
}

}  // namespace tandem::cli
