#include <optional>
#include <utility>
#include <vector>

#include "router/frontend/endpoints/answer_writer.h"
#include "router/frontend/json_text.h"

namespace tandem::router {
namespace {

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// OpenAI's responses: a list of items (reasoning, message, function calls), and in a stream an
// event for everything that happens to one.
class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(ResponseHead head, const GenerationRequest* request)
      : head_(std::move(head)), request_(request) {}

  void Part(const ChoicePart& part, const UsageCounts& usage, const EventSink& sink) override {
    Begin(usage, sink);
    if (!part.reasoning.empty()) {
      Open(Item::kReasoning, sink);
      text_ += part.reasoning;
      Send("response.reasoning_text.delta", ContentEvent({{"delta", part.reasoning}}), sink);
    }
    if (!part.text.empty()) {
      Open(Item::kMessage, sink);
      text_ += part.text;
      Json logprobs = LogprobsOf(part);
      for (const Json& entry : logprobs) {
        logprobs_.push_back(entry);
      }
      Send("response.output_text.delta",
           ContentEvent({{"delta", part.text}, {"logprobs", std::move(logprobs)}}), sink);
    }
    for (const tool_calls::CallDelta& call : part.calls) {
      AddCall(call, sink);
    }
    if (!part.finish_reason.empty()) {
      finish_reason_ = part.finish_reason;
    }
  }

  void End(const UsageCounts& usage, const EventSink& sink) override {
    Begin(usage, sink);
    if (output_.empty() && !item_) {  // an answer without any text is an empty message
      Open(Item::kMessage, sink);
    }
    Close(sink);
    const bool cut = finish_reason_ == "length";
    Send(cut ? "response.incomplete" : "response.completed",
         {{"response", Response(cut ? "incomplete" : "completed", &usage)}}, sink);
  }

  void Break(const ApiError& error, const EventSink& sink) override {
    Json data = Json::parse(ErrorBody(error));
    for (const char* member : {"code", "message", "param"}) {
      data[member] = data["error"][member];
    }
    Send("error", data, sink);
  }

  std::string Whole(std::span<const ChoicePart> parts, const UsageCounts& usage) override {
    const EventSink nowhere = [](std::string_view, std::string_view) {};
    Part(parts[0], usage, nowhere);
    if (output_.empty() && !item_) {
      Open(Item::kMessage, nowhere);
    }
    Close(nowhere);
    return Dump(Response(finish_reason_ == "length" ? "incomplete" : "completed", &usage));
  }

 private:
  enum class Item { kReasoning, kMessage, kCall };

  void Begin(const UsageCounts&, const EventSink& sink) {
    if (!std::exchange(begun_, true)) {
      Send("response.created", {{"response", Response("in_progress", nullptr)}}, sink);
      Send("response.in_progress", {{"response", Response("in_progress", nullptr)}}, sink);
    }
  }

  void Send(const char* type, const Json& members, const EventSink& sink) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(members);
    sink(type, Dump(data));
  }

  std::string ItemId(const char* prefix) const {
    return prefix + head_.id.substr(head_.id.find('_') + 1) + "_" + std::to_string(output_.size());
  }

  Json ItemEvent(const Json& members) const {
    Json data = {{"item_id", id_}, {"output_index", output_.size()}};
    data.update(members);
    return data;
  }

  Json ContentEvent(const Json& members) const {
    Json data = ItemEvent({{"content_index", 0}});
    data.update(members);
    return data;
  }

  Json ContentPart() const {
    if (*item_ == Item::kReasoning) {
      return {{"type", "reasoning_text"}, {"text", text_}};
    }
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", Json::array()},
            {"logprobs", logprobs_}};
  }

  // The open item as it is now.
  Json ItemNow(const char* status, bool with_content) const {
    const Json content = with_content ? Json::array({ContentPart()}) : Json::array();
    switch (*item_) {
      case Item::kReasoning:
        return {{"id", id_},
                {"type", "reasoning"},
                {"summary", Json::array()},
                {"content", content},
                {"status", status}};
      case Item::kMessage:
        return {{"id", id_},
                {"type", "message"},
                {"status", status},
                {"role", "assistant"},
                {"content", content}};
      case Item::kCall:
        break;
    }
    return {{"id", id_},           {"type", "function_call"}, {"status", status},
            {"call_id", call_id_}, {"name", call_name_},      {"arguments", text_}};
  }

  void Open(Item item, const EventSink& sink) {
    if (item_ == item && item != Item::kCall) {
      return;
    }
    Close(sink);
    item_ = item;
    id_ = ItemId(item == Item::kReasoning ? "rs_" : item == Item::kMessage ? "msg_" : "fc_");
    Send("response.output_item.added",
         {{"output_index", output_.size()}, {"item", ItemNow("in_progress", false)}}, sink);
    if (item != Item::kCall) {
      Send("response.content_part.added", ContentEvent({{"part", ContentPart()}}), sink);
    }
  }

  void Close(const EventSink& sink) {
    if (!item_) {
      return;
    }
    if (*item_ == Item::kCall) {
      Send("response.function_call_arguments.done",
           ItemEvent({{"name", call_name_}, {"arguments", text_}}), sink);
    } else if (*item_ == Item::kReasoning) {
      Send("response.reasoning_text.done", ContentEvent({{"text", text_}}), sink);
    } else {
      Send("response.output_text.done", ContentEvent({{"text", text_}, {"logprobs", logprobs_}}),
           sink);
    }
    if (*item_ != Item::kCall) {
      Send("response.content_part.done", ContentEvent({{"part", ContentPart()}}), sink);
    }
    // Only the last item can have been cut.
    Json done = ItemNow(finish_reason_ == "length" ? "incomplete" : "completed", true);
    Send("response.output_item.done", {{"output_index", output_.size()}, {"item", done}}, sink);
    output_.push_back(std::move(done));
    item_.reset();
    text_.clear();
    logprobs_ = Json::array();
  }

  void AddCall(const tool_calls::CallDelta& call, const EventSink& sink) {
    if (!call.id.empty()) {
      Close(sink);
      call_id_ = call.id;
      call_name_ = call.name;
      Open(Item::kCall, sink);
    }
    if (item_ == Item::kCall && !call.arguments.empty()) {
      text_ += call.arguments;
      Send("response.function_call_arguments.delta", ItemEvent({{"delta", call.arguments}}), sink);
    }
  }

  static Json LogprobsOf(const ChoicePart& part) {
    return part.logprobs_json.empty() ? Json::array() : Json::parse(part.logprobs_json)["content"];
  }

  Json Response(const char* status, const UsageCounts* usage) const {
    const Json& given = request_->repeated;
    const auto field = [&](const char* name, const Json& otherwise) {
      return given.value(name, otherwise);
    };
    Json text = field("text", Json::object());
    if (!text.contains("format")) {
      text["format"] = {{"type", "text"}};
    }
    const bool cut = std::string_view(status) == "incomplete";
    Json response = {{"id", head_.id},
                     {"object", "response"},
                     {"created_at", head_.created_unix_s},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", cut ? Json{{"reason", "max_output_tokens"}} : Json()},
                     {"instructions", field("instructions", nullptr)},
                     {"max_output_tokens", field("max_output_tokens", nullptr)},
                     {"max_tool_calls", field("max_tool_calls", nullptr)},
                     {"model", head_.model},
                     {"output", output_},
                     {"parallel_tool_calls", field("parallel_tool_calls", true)},
                     {"previous_response_id", nullptr},
                     {"reasoning", field("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                     {"service_tier", field("service_tier", "default")},
                     {"store", false},
                     {"temperature", field("temperature", 1.0)},
                     {"text", std::move(text)},
                     {"tool_choice", field("tool_choice", "auto")},
                     {"tools", field("tools", Json::array())},
                     {"top_logprobs", field("top_logprobs", 0)},
                     {"top_p", field("top_p", 1.0)},
                     {"truncation", "disabled"},
                     {"usage", nullptr},
                     {"user", field("user", nullptr)},
                     {"metadata", field("metadata", Json::object())}};
    if (usage != nullptr) {
      response["usage"] = {
          {"input_tokens", usage->prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage->cached_tokens}}},
          {"output_tokens", usage->completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage->reasoning_tokens}}},
          {"total_tokens", usage->prompt_tokens + usage->completion_tokens}};
    }
    if (!head_.system_fingerprint.empty()) {
      response["system_fingerprint"] = head_.system_fingerprint;
    }
    return response;
  }

  const ResponseHead head_;
  const GenerationRequest* const request_;
  bool begun_ = false;
  int64_t sequence_ = 0;
  Json output_ = Json::array();  // items that are complete
  std::optional<Item> item_;     // the open one
  std::string id_;
  std::string text_;  // or arguments
  Json logprobs_ = Json::array();
  std::string call_id_, call_name_;
  std::string finish_reason_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(ResponseHead head,
                                                  const GenerationRequest* request) {
  return std::make_unique<ResponsesWriter>(std::move(head), request);
}

}  // namespace tandem::router
