#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Keeps the order of members: chat templates print objects as they came.
using Json = nlohmann::ordered_json;

// A JSON document from outside. 400 for anything that is not one, is nested too deeply, or has so
// many members that reading it would take too long.
ApiResult ParseJson(std::string_view text, Json* out);

// Quoted and escaped; broken UTF-8 becomes U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
void AppendJsonInt(int64_t value, std::string* out);
// Infinite values, which JSON lacks, become the largest of their sign that vLLM uses: -9999.
void AppendJsonFloat(float value, std::string* out);
// A short form of a value for messages.
std::string Brief(const Json& value);

// {"error":{...}}
std::string ErrorBody(const ApiError& error);

}  // namespace tandem::router
