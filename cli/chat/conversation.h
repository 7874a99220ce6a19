#pragma once

#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace tandem::cli {

// A chat's messages and what its next request says. Not thread-safe.
class Conversation {
 public:
  struct Settings {
    std::string model;
    std::string system;  // empty: none
    std::optional<double> temperature;
    std::optional<int64_t> max_tokens;
  };

  explicit Conversation(Settings settings) : settings_(std::move(settings)) {}

  // The body of the request that asks for an answer to `text`.
  nlohmann::ordered_json Ask(const std::string& text);
  // The answer to the last question. An empty one takes the question back.
  void Answer(const std::string& text);
  // Takes the last question and its answer back, and gives the question; empty: there is none.
  std::string Retract();
  void Clear() { messages_ = nlohmann::ordered_json::array(); }
  void set_system(std::string system) { settings_.system = std::move(system); }
  size_t size() const { return messages_.size(); }

 private:
  Settings settings_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
};

}  // namespace tandem::cli
