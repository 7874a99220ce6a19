#include "router/frontend/routes.h"

#include <array>
#include <cstdint>

namespace tandem::router {
namespace {

constexpr std::array<std::string_view, kRouteCount> kNames = {"/v1/completions",
                                                              "/v1/chat/completions",
                                                              "/v1/responses",
                                                              "/v1/messages",
                                                              "/v1/messages/count_tokens",
                                                              "unsupported",
                                                              "/v1/models",
                                                              "/tokenize",
                                                              "/detokenize",
                                                              "/health",
                                                              "/ready",
                                                              "/version",
                                                              "/metrics",
                                                              "/openapi.json",
                                                              "page",
                                                              "/stats",
                                                              "grpc",
                                                              "other"};

constexpr auto kRoutes = std::to_array<RouteEntry>({
    {"/v1/completions", "POST", Route::kCompletions},
    {"/v1/chat/completions", "POST", Route::kChatCompletions},
    {"/v1/responses", "POST", Route::kResponses},
    {"/v1/messages", "POST", Route::kMessages},
    {"/v1/messages/count_tokens", "POST", Route::kCountTokens},
    {"/v1/embeddings", "POST", Route::kUnsupported},
    {"/v1/audio/speech", "POST", Route::kUnsupported},
    {"/v1/audio/transcriptions", "POST", Route::kUnsupported},
    {"/v1/audio/translations", "POST", Route::kUnsupported},
    {"/v1/images/generations", "POST", Route::kUnsupported},
    {"/v1/images/edits", "POST", Route::kUnsupported},
    {"/v1/moderations", "POST", Route::kUnsupported},
    {"/v1/score", "POST", Route::kUnsupported},
    {"/v1/rerank", "POST", Route::kUnsupported},
    {"/v1/batches", "POST", Route::kUnsupported},
    {"/v1/files", "POST", Route::kUnsupported},
    {"/v1/models", "GET", Route::kModels},
    {"/tokenize", "POST", Route::kTokenize},
    {"/detokenize", "POST", Route::kDetokenize},
    {"/health", "GET", Route::kHealth},
    {"/ready", "GET", Route::kReady},
    {"/version", "GET", Route::kVersion},
    {"/metrics", "GET", Route::kMetrics},
    {"/openapi.json", "GET", Route::kDocument},
    {"/docs", "GET", Route::kPage},
    {"/", "GET", Route::kPage},
    {"/stats", "GET", Route::kStats},
});
constexpr RouteEntry kOneModel = {"/v1/models/{model}", "GET", Route::kModels};

constexpr std::string_view kBearer = "bearer ";
constexpr std::string_view kBasic = "basic ";

bool HasScheme(std::string_view authorization, std::string_view scheme) {
  bool has = authorization.size() >= scheme.size();
  for (size_t i = 0; has && i < scheme.size(); ++i) {
    has = (authorization[i] | 32) == scheme[i];
  }
  return has;
}

// What comes before the first character that is no digit.
std::string DecodeBase64(std::string_view text) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) {
      break;
    }
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>((bits >> count) & 255);
    }
  }
  return out;
}

}  // namespace

std::string_view RouteName(Route route) { return kNames[static_cast<size_t>(route)]; }

std::span<const RouteEntry> AllRoutes() { return kRoutes; }

const RouteEntry* FindRoute(std::string_view path) {
  for (const RouteEntry& entry : kRoutes) {
    if (entry.path == path) {
      return &entry;
    }
  }
  return path.starts_with(kModelsPrefix) && path.size() > kModelsPrefix.size() ? &kOneModel
                                                                               : nullptr;
}

bool Allows(const RouteEntry& entry, std::string_view method) {
  return method == entry.method || (entry.method == "GET" && method == "HEAD");
}

std::string_view AllowedMethods(const RouteEntry& entry) {
  return entry.method == "GET" ? "GET, HEAD" : "POST";
}

Endpoint EndpointOf(Route route) {
  switch (route) {
    case Route::kChatCompletions:
      return Endpoint::kChat;
    case Route::kResponses:
      return Endpoint::kResponses;
    case Route::kMessages:
    case Route::kCountTokens:
      return Endpoint::kMessages;
    case Route::kTokenize:
      return Endpoint::kTokenize;
    case Route::kDetokenize:
      return Endpoint::kDetokenize;
    default:
      return Endpoint::kCompletions;
  }
}

bool SameKey(std::string_view given, std::string_view key) {
  unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(c ^ key[i]);
  }
  return difference == 0;
}

std::string AuthorizationKey(std::string_view authorization) {
  if (HasScheme(authorization, kBearer)) {
    return std::string(authorization.substr(kBearer.size()));
  }
  if (!HasScheme(authorization, kBasic)) {
    return "";
  }
  const std::string pair = DecodeBase64(authorization.substr(kBasic.size()));
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

std::string DecodePath(std::string_view path) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
  };
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && i + 2 < path.size() && digit(path[i + 1]) >= 0 &&
        digit(path[i + 2]) >= 0) {
      out += static_cast<char>(digit(path[i + 1]) * 16 + digit(path[i + 2]));
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

}  // namespace tandem::router
