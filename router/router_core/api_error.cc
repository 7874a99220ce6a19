#include "router/router_core/api_error.h"

#include <utility>

namespace tandem::router {
namespace {

constexpr int kRetryAfterSeconds = 1;
constexpr size_t kMaxEchoedBytes = 128;  // of a client's own text in a message

}  // namespace

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

ApiError InvalidRequest(std::string message, std::string param, std::string code) {
  return {400, std::move(message), std::move(param), std::move(code)};
}

ApiError ContextLengthExceeded(std::string message, std::string param) {
  return {400, std::move(message), std::move(param), "context_length_exceeded"};
}

ApiError ModelNotFound(std::string_view model) {
  return {404, "The model `" + std::string(model.substr(0, kMaxEchoedBytes)) + "` does not exist.",
          "model", "model_not_found"};
}

ApiError NotReady(std::string message) {
  return {503, std::move(message), "", "service_unavailable", kRetryAfterSeconds};
}

ApiError Overloaded(std::string message) {
  return {429, std::move(message), "", "rate_limit_exceeded", kRetryAfterSeconds};
}

}  // namespace tandem::router
