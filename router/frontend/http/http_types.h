#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "router/router_core/api_error.h"

namespace tandem::router {

// Bounds on what a client may make the server hold or wait for.
struct HttpLimits {
  size_t max_body_bytes = 16u << 20;
  size_t max_header_bytes = 16u << 10;
  int max_connections = 8192;
  int64_t idle_timeout_us = 75'000'000;    // between requests
  int64_t header_timeout_us = 10'000'000;  // from the first byte of a request
  int64_t body_timeout_us = 60'000'000;
  int64_t write_timeout_us = 30'000'000;  // without any progress
  size_t max_unsent_bytes = 64u << 10;    // of a stream, before its source is held back
};

struct HttpRequest {
  std::string method;
  std::string path;   // without host and query, as sent
  std::string query;  // without the question mark
  std::string authorization;
  std::string api_key;  // x-api-key
  std::string origin;   // of a page in a browser
  // A browser asks before it sends a request.
  bool preflight = false;
  std::string requested_headers;
  std::string request_id;  // the client's, if it is fit to be used
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::optional<ApiError> error;  // what the body tells, for exchanges that are not HTTP
};

// One request's answer. Used on its connection's thread only. After Respond, EndEvents, AbortEvents
// or on_gone nothing more may be called.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // What every response carries as x-request-id; set before answering.
  virtual void set_request_id(const std::string& id) = 0;
  // The client went away, or takes nothing any more.
  virtual void set_on_gone(std::function<void()> on_gone) = 0;
  // congested() became false.
  virtual void set_on_drained(std::function<void()> on_drained) = 0;
  // The client has gone already.
  virtual bool gone() const = 0;

  virtual void Respond(HttpResponse response) = 0;

  // Server-sent events: status and headers go out with the first Flush.
  virtual void BeginEvents() = 0;
  // `event` is empty for an unnamed event.
  virtual void Event(std::string_view event, std::string_view data) = 0;
  // A line that clients skip.
  virtual void Comment(std::string_view text) = 0;
  virtual void Flush() = 0;
  // More is unsent than a stream may hold: its source should pause.
  virtual bool congested() const = 0;
  virtual void EndEvents() = 0;
  // Sends what there is and closes the connection, so that the client sees a broken stream.
  virtual void AbortEvents(const ApiError& error) = 0;

  virtual boost::asio::io_context& io() = 0;
  // Which of the server's threads this is.
  virtual int io_index() const = 0;
};

// What the server calls; on the connection's thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // May refuse a request before its body is read. `head.body` is empty.
  virtual ApiResult CheckHead(const HttpRequest& head) = 0;
  virtual void OnRequest(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // CheckHead refused it, or it is no proper HTTP; the connection closes after the answer.
  virtual void OnRefused(const HttpRequest& head, ApiError error,
                         std::shared_ptr<Exchange> exchange) = 0;
  // Header lines, each with its end, that every answer to such a request carries.
  virtual std::string ExtraHeaders(const HttpRequest& head) const = 0;
  // Responses should say that the connection closes.
  virtual bool draining() const = 0;
};

std::string_view ReasonPhrase(int status);

}  // namespace tandem::router
