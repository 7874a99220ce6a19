#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cli/bench/load_generator.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

struct ChatServer {
  ServerUrl url;
  std::string api_key;                      // empty: none
  int64_t silence_timeout_us = 60'000'000;  // without a byte from the server
};

enum class ChatText { kReasoning, kContent };

// Posts a streaming chat completion and hands on the text as it comes. Ends early, and OK, when
// `stop` becomes true. Errors say what the server or the connection said.
absl::Status StreamChat(const ChatServer& server, const nlohmann::ordered_json& body,
                        const std::atomic<bool>& stop,
                        const std::function<void(ChatText, std::string_view)>& on_text);

}  // namespace tandem::cli
