#include "router/frontend/logprobs.h"

#include <algorithm>
#include <set>

#include "router/frontend/json_text.h"
#include "router/frontend/text/incremental_detokenizer.h"

namespace tandem::router {
namespace {

// The text of a token where it is whole UTF-8.
bool IsWhole(std::string_view bytes, std::string* text) {
  text::Utf8Stream stream;
  stream.Append(bytes, text);
  stream.Flush(text);
  return *text == bytes;
}

std::string TokenName(const TokenNaming& naming, int32_t id) {
  if (naming.tokenizer == nullptr || naming.as_token_ids) {
    return "token_id:" + std::to_string(id);
  }
  const std::string_view bytes = naming.tokenizer->TokenBytes(id);
  std::string text;
  if (!IsWhole(bytes, &text)) {
    static constexpr char kHex[] = "0123456789abcdef";
    text = "bytes:";
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text;
}

void Separate(std::string* list) {
  if (!list->empty()) {
    *list += ',';
  }
}

}  // namespace

void AppendTokenName(const TokenNaming& naming, int32_t id, std::string* out) {
  AppendJsonString(TokenName(naming, id), out);
}

void LegacyLogprobs::AddName(int32_t id, bool hidden, int64_t offset) {
  for (std::string* list : {&tokens_, &token_logprobs_, &top_logprobs_, &text_offsets_}) {
    Separate(list);
  }
  AppendJsonInt(offset, &text_offsets_);
  if (!hidden || naming_.as_token_ids) {
    AppendTokenName(naming_, id, &tokens_);
  } else {
    tokens_ += "\"\"";
  }
}

void LegacyLogprobs::AddValues(const v1::TokenLogprob* chosen,
                               const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tops) {
  if (chosen == nullptr) {
    token_logprobs_ += "null";
    top_logprobs_ += "null";
    return;
  }
  AppendJsonFloat(chosen->logprob(), &token_logprobs_);
  // Two tokens may have the same text; a key stands for the likelier, which comes first.
  std::set<std::string> seen;
  const auto append = [&](const v1::TokenLogprob& entry) {
    const std::string name = TokenName(naming_, entry.token_id());
    if (seen.insert(name).second) {
      top_logprobs_ += seen.size() > 1 ? "," : "";
      AppendJsonString(name, &top_logprobs_);
      top_logprobs_ += ':';
      AppendJsonFloat(entry.logprob(), &top_logprobs_);
    }
  };
  top_logprobs_ += '{';
  for (const v1::TokenLogprob& entry : tops) {
    append(entry);
  }
  append(*chosen);
  top_logprobs_ += '}';
}

void LegacyLogprobs::Add(const v1::TokenOutput& token, int64_t offset) {
  AddName(token.token_id(), /*hidden=*/false, offset);
  AddValues(token.has_chosen() ? &token.chosen() : nullptr, token.top_logprobs());
}

void LegacyLogprobs::AddPrompt(const PromptToken& token) {
  static const google::protobuf::RepeatedPtrField<v1::TokenLogprob> kNone;
  const bool known = token.logprobs != nullptr && token.logprobs->has_actual();
  AddName(token.id, token.hidden, token.offset);
  AddValues(known ? &token.logprobs->actual() : nullptr,
            known ? token.logprobs->top_logprobs() : kNone);
}

std::string LegacyLogprobs::Take() {
  std::string json = "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + token_logprobs_ +
                     "],\"top_logprobs\":[" + top_logprobs_ + "],\"text_offset\":[" +
                     text_offsets_ + "]}";
  for (std::string* list : {&tokens_, &token_logprobs_, &top_logprobs_, &text_offsets_}) {
    list->clear();
  }
  return json;
}

void ChatLogprobs::AppendEntry(const v1::TokenLogprob& entry) {
  content_ += "{\"token\":";
  AppendTokenName(naming_, entry.token_id(), &content_);
  content_ += ",\"logprob\":";
  AppendJsonFloat(entry.logprob(), &content_);
  content_ += ",\"bytes\":[";
  if (naming_.tokenizer != nullptr) {
    bool first = true;
    for (const char c : naming_.tokenizer->TokenBytes(entry.token_id())) {
      content_ += first ? "" : ",";
      AppendJsonInt(static_cast<unsigned char>(c), &content_);
      first = false;
    }
  }
  content_ += ']';
}

void ChatLogprobs::Add(const v1::TokenOutput& token) {
  Separate(&content_);
  v1::TokenLogprob chosen = token.chosen();
  chosen.set_token_id(token.token_id());
  AppendEntry(chosen);
  content_ += ",\"top_logprobs\":[";
  for (int i = 0; i < token.top_logprobs_size(); ++i) {
    content_ += i == 0 ? "" : ",";
    AppendEntry(token.top_logprobs(i));
    content_ += '}';
  }
  content_ += "]}";
}

std::string ChatLogprobs::Take() {
  std::string json = "{\"content\":[" + content_ + "]}";
  content_.clear();
  return json;
}

std::string PromptLogprobsJson(
    const TokenNaming& naming,
    const google::protobuf::RepeatedPtrField<v1::PromptTokenLogprobs>& prompt_logprobs) {
  std::string json = "[";
  for (const v1::PromptTokenLogprobs& entry : prompt_logprobs) {
    json += json.size() > 1 ? "," : "";
    if (!entry.has_actual()) {
      json += "null";
      continue;
    }
    std::set<int32_t> seen;
    const auto append = [&](const v1::TokenLogprob& token) {
      if (!seen.insert(token.token_id()).second) {
        return;
      }
      json += seen.size() > 1 ? ",\"" : "\"";
      AppendJsonInt(token.token_id(), &json);
      json += "\":{\"logprob\":";
      AppendJsonFloat(token.logprob(), &json);
      json += ",\"rank\":";
      AppendJsonInt(token.rank(), &json);
      json += ",\"decoded_token\":";
      AppendTokenName({naming.tokenizer, false}, token.token_id(), &json);
      json += '}';
    };
    json += '{';
    append(entry.actual());
    for (const v1::TokenLogprob& top : entry.top_logprobs()) {
      append(top);
    }
    json += '}';
  }
  return json + "]";
}

}  // namespace tandem::router
