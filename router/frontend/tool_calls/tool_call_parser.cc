#include "router/frontend/tool_calls/tool_call_parser.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "router/frontend/tool_calls/reasoning_splitter.h"

namespace tandem::tool_calls {
namespace {

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kPythonTag = "<|python_tag|>";  // in front of a Llama's call, at times
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxHeaderBytes = 512;

std::string_view TagOf(Format format) {
  switch (format) {
    case Format::kHermes:
      return kHermesOpen;
    case Format::kMistral:
      return kMistralOpen;
    default:
      return {};
  }
}

// FNV-1a; ids need only differ.
uint64_t Hash(std::string_view text, uint64_t hash) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace

ToolCallParser::ToolCallParser(ToolCallOptions options)
    : options_(std::move(options)), tag_(TagOf(options_.format)) {
  if (options_.enforced && options_.format == Format::kMistral) {
    at_ = At::kBeforeCall;  // its mark is a control token, which a grammar cannot ask for
  }
}

void ToolCallParser::Append(std::string_view text, OutputDelta* out) {
  if (options_.format == Format::kNone) {
    out->content += text;
    return;
  }
  buffer_ += text;
  while (!buffer_.empty() && Step(out)) {
  }
}

bool ToolCallParser::Step(OutputDelta* out) {
  switch (at_) {
    case At::kText:
      return tag_.empty() ? StepBareText(out) : StepText(out);
    case At::kBeforeCall:
      return StepBeforeCall(out);
    case At::kCall:
      return StepCall(out);
    case At::kNamedCall:
      return StepNamedCall(out);
    case At::kAfterCall:
      return StepAfterCall(out);
  }
  return false;
}

bool ToolCallParser::StepText(OutputDelta* out) {
  const size_t tag = buffer_.find(tag_);
  if (tag == std::string::npos) {
    const size_t held = PartialTagAtEnd(buffer_, tag_);
    AddContent(std::string_view(buffer_).substr(0, buffer_.size() - held), out);
    buffer_.erase(0, buffer_.size() - held);
    return false;
  }
  AddContent(std::string_view(buffer_).substr(0, tag), out);
  buffer_.erase(0, tag + tag_.size());
  raw_ = tag_;
  at_ = At::kBeforeCall;
  return true;
}

bool ToolCallParser::StepBareText(OutputDelta* out) {
  const size_t begin = bare_decided_ ? 0 : buffer_.find_first_not_of(kSpace);
  if (begin == std::string::npos) {
    return false;
  }
  const std::string_view rest = std::string_view(buffer_).substr(begin);
  if (!bare_decided_ && rest.size() < kPythonTag.size() && kPythonTag.starts_with(rest)) {
    return false;
  }
  if (!bare_decided_ && (rest.starts_with('{') || rest.starts_with(kPythonTag))) {
    const size_t skipped = begin + (rest.starts_with('{') ? 0 : kPythonTag.size());
    raw_ = buffer_.substr(0, begin);
    buffer_.erase(0, skipped);
    at_ = At::kBeforeCall;
    return true;
  }
  bare_decided_ = true;
  AddContent(buffer_, out);
  buffer_.clear();
  return false;
}

bool ToolCallParser::SkipSpace() {
  const size_t begin = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  raw_.append(buffer_, 0, begin);
  buffer_.erase(0, begin);
  return !buffer_.empty();
}

bool ToolCallParser::StepBeforeCall(OutputDelta* out) {
  if (!SkipSpace()) {
    return false;
  }
  const char c = buffer_[0];
  if (c == '{') {
    BeginCall(At::kCall);
    return true;
  }
  const bool mistral = options_.format == Format::kMistral;
  const bool separator = in_list_ ? c == ',' : c == ';' && tag_.empty() && calls_ > 0;
  const bool bracket = mistral && c == (in_list_ ? ']' : '[');
  if (separator || bracket) {
    if (bracket) {
      at_ = in_list_ ? At::kText : At::kBeforeCall;
      in_list_ = !in_list_;
    }
    raw_ += c;
    buffer_.erase(0, 1);
    return true;
  }
  const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  if (mistral && !in_list_ && word) {
    at_ = At::kNamedCall;
    return true;
  }
  GiveUp(out);
  return true;
}

void ToolCallParser::BeginCall(At at) {
  at_ = at;
  scanner_ = CallScanner();
  announced_ = false;
}

// [TOOL_CALLS]name{...}, or name[CALL_ID]id[ARGS]{...}.
bool ToolCallParser::StepNamedCall(OutputDelta* out) {
  const size_t brace = buffer_.find('{');
  if (brace == std::string::npos) {
    if (buffer_.size() > kMaxHeaderBytes) {
      GiveUp(out);
      return true;
    }
    return false;
  }
  std::string name = buffer_.substr(0, std::min(brace, buffer_.find('[')));
  name.erase(std::min(name.find_last_not_of(kSpace) + 1, name.size()));
  raw_.append(buffer_, 0, brace);
  buffer_.erase(0, brace);
  BeginCall(At::kCall);
  named_ = true;
  scanner_.Feed("{\"name\":\"" + name + "\",\"arguments\":");
  return true;
}

bool ToolCallParser::StepCall(OutputDelta* out) {
  size_t taken = 0;
  if (named_) {
    // The object around the arguments is ours: it ends where they do.
    while (taken < buffer_.size() && scanner_.state() == CallScanner::State::kOpen) {
      taken += scanner_.Feed(std::string_view(buffer_).substr(taken, 1));
      if (scanner_.after_value()) {
        scanner_.Feed("}");
      }
    }
  } else {
    taken = scanner_.Feed(buffer_);
  }
  raw_.append(buffer_, 0, taken);
  buffer_.erase(0, taken);
  const bool broken = scanner_.state() == CallScanner::State::kBroken;
  const bool named = !scanner_.name().empty();
  if ((broken && !named) || (tag_.empty() && named && !IsKnown(scanner_.name()))) {
    GiveUp(out);
    return true;
  }
  Report(out);
  if (broken) {  // its name is out: what follows is no part of it
    GiveUp(out);
    return true;
  }
  if (scanner_.state() == CallScanner::State::kDone) {
    at_ = named_ ? At::kText : At::kAfterCall;
    named_ = false;
    raw_.clear();
    return true;
  }
  return false;
}

void ToolCallParser::Report(OutputDelta* out) {
  if (scanner_.name().empty()) {
    return;
  }
  CallDelta delta;
  if (!announced_) {
    announced_ = true;
    ++call_index_;
    raw_.clear();
    spaces_.clear();
    if (!dropping()) {
      ++calls_;
      delta.id = MakeId();
      delta.name = scanner_.name();
    }
  }
  delta.index = call_index_;
  delta.arguments = scanner_.TakeArguments();
  if (!dropping() && (!delta.id.empty() || !delta.arguments.empty())) {
    out->calls.push_back(std::move(delta));
  }
}

bool ToolCallParser::StepAfterCall(OutputDelta*) {
  if (!SkipSpace()) {
    return false;
  }
  raw_.clear();
  if (options_.format != Format::kHermes) {
    at_ = At::kBeforeCall;
    return true;
  }
  if (buffer_.size() < kHermesClose.size() && kHermesClose.starts_with(buffer_)) {
    return false;
  }
  if (buffer_.starts_with(kHermesClose)) {
    buffer_.erase(0, kHermesClose.size());
  }
  at_ = At::kText;
  return true;
}

void ToolCallParser::GiveUp(OutputDelta* out) {
  if (!announced_ || at_ != At::kCall) {
    AddContent(raw_, out);
  }
  raw_.clear();
  named_ = false;
  in_list_ = false;
  bare_decided_ = true;
  announced_ = false;
  at_ = At::kText;
}

void ToolCallParser::AddContent(std::string_view text, OutputDelta* out) {
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  out->content += std::exchange(spaces_, {});
  out->content += text.substr(0, last + 1);
  spaces_ = text.substr(last + 1);
}

void ToolCallParser::Finish(OutputDelta* out) {
  if (options_.format == Format::kNone) {
    return;
  }
  const bool open = at_ == At::kBeforeCall || at_ == At::kNamedCall || at_ == At::kCall;
  if (open && !(at_ == At::kCall && announced_)) {
    AddContent(raw_, out);
  }
  const bool closing = at_ == At::kAfterCall && kHermesClose.starts_with(buffer_);
  if (!closing && (at_ != At::kCall || !announced_)) {
    AddContent(buffer_, out);
  }
  if (calls_ == 0) {
    out->content += spaces_;
  }
  buffer_.clear();
  raw_.clear();
  spaces_.clear();
}

bool ToolCallParser::IsKnown(const std::string& name) const {
  return std::find(options_.names.begin(), options_.names.end(), name) != options_.names.end();
}

std::string ToolCallParser::MakeId() const {
  static constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  // Templates of Mistral's accept ids of exactly nine characters.
  const bool mistral = options_.format == Format::kMistral;
  std::string id = mistral ? "" : "call_";
  uint64_t hash = Hash(options_.id_seed, 14695981039346656037ULL);
  for (int i = 0; i < (mistral ? 9 : 24); ++i) {
    hash = Hash(std::to_string(call_index_), hash);
    id += kDigits[(hash >> 32) % kDigits.size()];
  }
  return id;
}

}  // namespace tandem::tool_calls
