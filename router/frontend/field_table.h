#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// How a field of a request is read.
struct Integer {
  std::optional<int64_t> GenerationRequest::*target;
  int64_t min, max;
};
struct Number {
  std::optional<double> GenerationRequest::*target;
  double min, max;
  bool above_min = false;  // min itself is not allowed
};
struct Flag {
  bool GenerationRequest::*target;
};
struct OptionalFlag {
  std::optional<bool> GenerationRequest::*target;
};
// Anything else checks itself.
using Custom = ApiResult (*)(std::string_view name, const Json& value, GenerationRequest* request);
// Known, and without an effect here; `fits` of null takes any value.
struct Ignored {
  const char* expected = nullptr;
  bool (*fits)(const Json& value) = nullptr;
};
// Known, and not served: refused unless the value asks for nothing.
struct Refused {
  const char* message;
  bool (*harmless)(const Json& value, const Json& body);
};

// One known field. `endpoints`: bits, one per Endpoint.
struct Field {
  std::string_view name;
  unsigned endpoints;
  std::variant<Integer, Number, Flag, OptionalFlag, Custom, Ignored, Refused> kind;
};

constexpr unsigned EndpointBit(Endpoint endpoint) { return 1u << static_cast<int>(endpoint); }

// Reads `value`, which is not null, into `request`, or says what is wrong.
ApiResult ReadField(const Field& field, const Json& value, const Json& body,
                    GenerationRequest* request);

// All fields of all endpoints, in the order in which they are named in errors.
std::span<const Field> AllFields();

}  // namespace tandem::router
