#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "router/frontend/generation_request.h"

namespace tandem::router {

// What the largest and smallest values in schemas depend on.
struct SchemaLimits {
  int64_t max_model_len = 1;
  int64_t vocab_size = 1;
  std::vector<std::string> models;  // their names
};

// JSON schema of a field that reads itself; null: any value.
Json CustomFieldSchema(Endpoint endpoint, std::string_view name, const SchemaLimits& limits);
// JSON schemas of answers, by name: components/schemas.
Json AnswerSchemas();

}  // namespace tandem::router
