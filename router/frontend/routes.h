#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "router/frontend/generation_request.h"

namespace tandem::router {

// Endpoints as the metrics name them; everything else is kOther.
enum class Route {
  kCompletions,
  kChatCompletions,
  kResponses,
  kMessages,
  kCountTokens,
  kUnsupported,
  kModels,
  kTokenize,
  kDetokenize,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kDocument,
  kPage,
  kStats,
  kGrpc,
  kOther
};
inline constexpr size_t kRouteCount = static_cast<size_t>(Route::kOther) + 1;

// Label of a route in the metrics.
std::string_view RouteName(Route route);

struct RouteEntry {
  std::string_view path;
  std::string_view method;  // a GET also answers HEAD
  Route route;
};

inline constexpr std::string_view kModelsPrefix = "/v1/models/";

std::span<const RouteEntry> AllRoutes();
// Null: nothing is there.
const RouteEntry* FindRoute(std::string_view path);
bool Allows(const RouteEntry& entry, std::string_view method);
// Value of the Allow header.
std::string_view AllowedMethods(const RouteEntry& entry);
// Answered without a key.
inline bool IsOpen(Route route) { return route == Route::kHealth || route == Route::kReady; }
// The kind of body that a POST to it takes.
Endpoint EndpointOf(Route route);

// Takes the same time whatever the difference, so that a key cannot be found byte by byte.
bool SameKey(std::string_view given, std::string_view key);
// The key in an Authorization header: `Bearer KEY`, or the password of `Basic`, which is what
// browsers send; empty: none.
std::string AuthorizationKey(std::string_view authorization);
// %XX in a path.
std::string DecodePath(std::string_view path);

}  // namespace tandem::router
