#include <utility>
#include <vector>

#include "router/frontend/endpoints/answer_writer.h"
#include "router/frontend/json_text.h"

namespace tandem::router {
namespace {

// OpenAI's completions and chat completions.
class ChoicesWriter : public AnswerWriter {
 public:
  ChoicesWriter(ResponseHead head, const GenerationRequest* request)
      : head_(std::move(head)), request_(request), prefix_(ResponsePrefix(head_)) {}

  void Part(const ChoicePart& part, const UsageCounts& usage, const EventSink& sink) override {
    const UsageCounts* const shown = request_->continuous_usage ? &usage : nullptr;
    const auto index = static_cast<size_t>(part.index);
    if (role_sent_.size() <= index) {
      role_sent_.resize(index + 1);
    }
    std::string choice;
    const bool chat = head_.endpoint == Endpoint::kChat;
    if (chat && !role_sent_[index]) {
      role_sent_[index] = true;
      AppendRoleChoice(part.index, &choice);
      SendChunk(choice, shown, part.prompt_token_ids, sink);
      choice.clear();
    }
    AppendChoice(head_, part, &choice);
    SendChunk(choice, shown, std::nullopt, sink);
  }

  void End(const UsageCounts& usage, const EventSink& sink) override {
    if (request_->include_usage) {
      SendChunk("", &usage, std::nullopt, sink);
    }
    sink("", "[DONE]");
  }

  std::string Whole(std::span<const ChoicePart> parts, const UsageCounts& usage) override {
    std::string body = prefix_;
    for (const ChoicePart& part : parts) {
      body += part.index > 0 ? "," : "";
      AppendChoice(head_, part, &body);
    }
    body += "],\"usage\":";
    AppendUsage(usage, &body);
    if (head_.endpoint == Endpoint::kChat) {
      if (!parts[0].prompt_logprobs_json.empty()) {
        body += ",\"prompt_logprobs\":" + parts[0].prompt_logprobs_json;
      }
      AppendIdsMember("prompt_token_ids", parts[0].prompt_token_ids, &body);
    }
    return body + '}';
  }

 private:
  void SendChunk(std::string_view choice, const UsageCounts* usage,
                 const std::optional<std::span<const int32_t>>& prompt_token_ids,
                 const EventSink& sink) {
    std::string data = prefix_;
    data += choice;
    data += ']';
    AppendIdsMember("prompt_token_ids", prompt_token_ids, &data);
    if (usage != nullptr) {
      data += ",\"usage\":";
      AppendUsage(*usage, &data);
    } else if (request_->include_usage) {
      data += ",\"usage\":null";
    }
    data += '}';
    sink("", data);
  }

  const ResponseHead head_;
  const GenerationRequest* const request_;
  const std::string prefix_;
  std::vector<bool> role_sent_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChoicesWriter(ResponseHead head,
                                                const GenerationRequest* request) {
  return std::make_unique<ChoicesWriter>(std::move(head), request);
}

}  // namespace tandem::router
