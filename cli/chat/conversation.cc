#include "cli/chat/conversation.h"

namespace tandem::cli {

using Json = nlohmann::ordered_json;

Json Conversation::Ask(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  Json body = {{"model", settings_.model}, {"stream", true}, {"messages", Json::array()}};
  if (!settings_.system.empty()) {
    body["messages"].push_back({{"role", "system"}, {"content", settings_.system}});
  }
  for (const Json& message : messages_) {
    body["messages"].push_back(message);
  }
  if (settings_.temperature) {
    body["temperature"] = *settings_.temperature;
  }
  if (settings_.max_tokens) {
    body["max_tokens"] = *settings_.max_tokens;
  }
  return body;
}

void Conversation::Answer(const std::string& text) {
  if (!text.empty()) {
    messages_.push_back({{"role", "assistant"}, {"content", text}});
  } else if (!messages_.empty()) {
    messages_.erase(messages_.size() - 1);
  }
}

std::string Conversation::Retract() {
  while (!messages_.empty()) {
    const Json last = messages_.back();
    messages_.erase(messages_.size() - 1);
    if (last["role"] == "user") {
      return last["content"].get<std::string>();
    }
  }
  return "";
}

}  // namespace tandem::cli
