#include <optional>
#include <utility>

#include "router/frontend/endpoints/answer_writer.h"
#include "router/frontend/json_text.h"

namespace tandem::router {
namespace {

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Anthropic's messages: a list of blocks (thinking, text, tool_use).
class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(ResponseHead head, const GenerationRequest*) : head_(std::move(head)) {}

  void Part(const ChoicePart& part, const UsageCounts& usage, const EventSink& sink) override {
    Begin(usage, sink);
    if (!part.reasoning.empty()) {
      Open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, sink);
      text_ += part.reasoning;
      SendDelta({{"type", "thinking_delta"}, {"thinking", part.reasoning}}, sink);
    }
    if (!part.text.empty()) {
      Open(Block::kText, {{"type", "text"}, {"text", ""}}, sink);
      text_ += part.text;
      SendDelta({{"type", "text_delta"}, {"text", part.text}}, sink);
    }
    for (const tool_calls::CallDelta& call : part.calls) {
      if (!call.id.empty()) {
        Close(sink);
        Open(
            Block::kToolUse,
            {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}},
            sink);
      }
      text_ += call.arguments;
      SendDelta({{"type", "input_json_delta"}, {"partial_json", call.arguments}}, sink);
    }
    TakeReason(part);
  }

  void End(const UsageCounts& usage, const EventSink& sink) override {
    Begin(usage, sink);
    Close(sink);
    Send("message_delta",
         {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
          {"usage", Usage(usage)}},
         sink);
    Send("message_stop", Json::object(), sink);
  }

  void Break(const ApiError& error, const EventSink& sink) override {
    Send("error", Json::parse(ErrorBody(error)), sink);
  }

  std::string Whole(std::span<const ChoicePart> parts, const UsageCounts& usage) override {
    const EventSink nowhere = [](std::string_view, std::string_view) {};
    Part(parts[0], usage, nowhere);
    Close(nowhere);
    return Dump(Message(usage));
  }

 private:
  enum class Block { kThinking, kText, kToolUse };

  void Send(const char* type, const Json& members, const EventSink& sink) const {
    Json data = {{"type", type}};
    data.update(members);
    sink(type, Dump(data));
  }

  void SendDelta(Json delta, const EventSink& sink) const {
    Send("content_block_delta", {{"index", content_.size()}, {"delta", std::move(delta)}}, sink);
  }

  void Begin(UsageCounts usage, const EventSink& sink) {
    if (!std::exchange(begun_, true)) {
      usage.completion_tokens = 0;
      Send("message_start", {{"message", Message(usage)}}, sink);
      Send("ping", Json::object(), sink);
    }
  }

  void Open(Block block, Json start, const EventSink& sink) {
    if (block_ == block) {
      return;
    }
    Close(sink);
    block_ = block;
    now_ = std::move(start);
    Send("content_block_start", {{"index", content_.size()}, {"content_block", now_}}, sink);
  }

  void Close(const EventSink& sink) {
    if (!block_) {
      return;
    }
    if (*block_ == Block::kToolUse) {
      Json input = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
      now_["input"] = input.is_object() ? std::move(input) : Json::object();  // cut by max_tokens
    } else {
      now_[*block_ == Block::kText ? "text" : "thinking"] = text_;
    }
    Send("content_block_stop", {{"index", content_.size()}}, sink);
    content_.push_back(std::exchange(now_, Json()));
    block_.reset();
    text_.clear();
  }

  void TakeReason(const ChoicePart& part) {
    if (part.finish_reason.empty()) {
      return;
    }
    const Json stop = part.stop_reason_json.empty() ? Json() : Json::parse(part.stop_reason_json);
    const bool called = block_ == Block::kToolUse;
    if (part.finish_reason == "length") {
      stop_reason_ = "max_tokens";
    } else if (stop.is_string()) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = stop;
    } else {
      stop_reason_ = called || part.finish_reason == "tool_calls" ? "tool_use" : "end_turn";
    }
  }

  static Json Usage(const UsageCounts& usage) {
    // Anthropic counts what came from the cache apart.
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens}};
  }

  Json Message(const UsageCounts& usage) const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", content_},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", Usage(usage)}};
  }

  const ResponseHead head_;
  bool begun_ = false;
  Json content_ = Json::array();  // blocks that are complete
  std::optional<Block> block_;    // the open one
  Json now_;
  std::string text_;
  Json stop_reason_, stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessagesWriter(ResponseHead head,
                                                 const GenerationRequest* request) {
  return std::make_unique<MessagesWriter>(std::move(head), request);
}

}  // namespace tandem::router
