#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::router {

// What a client is told about a request that failed, in OpenAI's form. `param` and `code` are null
// in the body when empty.
struct ApiError {
  int http_status = 500;
  std::string message;
  std::string param;
  std::string code;
  int retry_after_s = 0;  // 0: no Retry-After header
};

// Nothing: all is well.
using ApiResult = std::optional<ApiError>;

// error.type, which follows from the status.
std::string_view ErrorType(int http_status);

ApiError InvalidRequest(std::string message, std::string param = "", std::string code = "");
ApiError ContextLengthExceeded(std::string message, std::string param);
ApiError ModelNotFound(std::string_view model);
ApiError NotReady(std::string message);    // 503 with Retry-After
ApiError Overloaded(std::string message);  // 429 with Retry-After

}  // namespace tandem::router
