#include "cli/bench/completion_reader.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr size_t kMaxBody = size_t{64} << 20;

// Null for text that is no JSON object.
json ParseObject(const std::string& text) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value : json();
}

int64_t Count(const json& usage, const char* name) {
  const auto found = usage.find(name);
  return found != usage.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string ErrorText(const json& error) {
  const auto message = error.is_object() ? error.find("message") : error.end();
  return error.is_object() && message != error.end() && message->is_string()
             ? message->get<std::string>()
             : error.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void CompletionReader::Feed(std::string_view piece, int64_t now_us) {
  if (body_.size() + sse_.pending_bytes() + piece.size() > kMaxBody) {
    outcome_.error = "answer too large";
    return;
  }
  if (!stream_) {
    body_.append(piece);
    return;
  }
  for (const std::string& data : sse_.Feed(piece)) {
    TakeEvent(data, now_us);
  }
}

void CompletionReader::TakeEvent(const std::string& data, int64_t now_us) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const json event = ParseObject(data);
  if (event.is_null()) {
    outcome_.error = "an event is no JSON object";
    return;
  }
  if (const auto error = event.find("error"); error != event.end()) {
    outcome_.error = "error event: " + ErrorText(*error);
    return;
  }
  TakeUsage(event);
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) {
    return;
  }
  const json& choice = choices->front();
  if (!choice.is_object()) {
    return;
  }
  const auto ids = choice.find("token_ids");
  const auto text = choice.find("text");
  if (ids != choice.end() && ids->is_array()) {
    AddTokens(static_cast<int64_t>(ids->size()), now_us);
  } else if (text != choice.end() && text->is_string() &&
             !text->get_ref<const std::string&>().empty()) {
    AddTokens(1, now_us);
  }
}

void CompletionReader::TakeUsage(const json& answer) {
  const auto usage = answer.find("usage");
  if (usage == answer.end() || !usage->is_object()) {
    return;
  }
  has_usage_ = true;
  outcome_.prompt_tokens = Count(*usage, "prompt_tokens");
  outcome_.output_tokens = Count(*usage, "completion_tokens");
}

// Tokens that came in one event share the time since the event before.
void CompletionReader::AddTokens(int64_t count, int64_t now_us) {
  if (count <= 0) {
    return;
  }
  if (!outcome_.first_token_us) {
    outcome_.first_token_us = now_us - due_us_;
    last_token_us_ = now_us;
    outcome_.inter_token_us.insert(outcome_.inter_token_us.end(), static_cast<size_t>(count - 1),
                                   0);
  } else {
    outcome_.inter_token_us.insert(outcome_.inter_token_us.end(), static_cast<size_t>(count),
                                   (now_us - last_token_us_) / count);
    last_token_us_ = now_us;
  }
  counted_tokens_ += count;
}

RequestOutcome CompletionReader::Finish(int64_t now_us) {
  if (!stream_ && outcome_.error.empty()) {
    const json answer = ParseObject(body_);
    if (answer.is_null()) {
      outcome_.error = "the answer is no JSON object";
    } else {
      TakeUsage(answer);
    }
  }
  if (stream_ && !done_ && outcome_.error.empty()) {
    outcome_.error = "the stream ended without [DONE]";
  }
  if (!has_usage_) {
    outcome_.output_tokens = counted_tokens_;
  }
  outcome_.ok = outcome_.error.empty();
  outcome_.total_us = now_us - due_us_;
  return std::move(outcome_);
}

absl::StatusOr<ServedModel> ParseServedModel(const std::string& body) {
  const json answer = ParseObject(body);
  const auto data = answer.find("data");
  if (answer.is_null() || data == answer.end() || !data->is_array() || data->empty() ||
      !data->front().is_object()) {
    return absl::InvalidArgumentError("/v1/models lists no model");
  }
  const json& model = data->front();
  const auto id = model.find("id");
  if (id == model.end() || !id->is_string()) {
    return absl::InvalidArgumentError("/v1/models gives its model no id");
  }
  return ServedModel{id->get<std::string>(), Count(model, "max_model_len")};
}

}  // namespace tandem::cli
