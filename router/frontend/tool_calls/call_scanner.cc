#include "router/frontend/tool_calls/call_scanner.h"

#include <utility>

#include "nlohmann/json.hpp"

namespace tandem::tool_calls {
namespace {

constexpr size_t kMaxKeyBytes = 256;
constexpr int kMaxDepth = 200;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool IsPrimitive(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
         c == 'E';
}

}  // namespace

size_t CallScanner::Feed(std::string_view text) {
  size_t taken = 0;
  while (taken < text.size() && state_ == State::kOpen) {
    if (!Take(text[taken])) {
      state_ = State::kBroken;
      break;
    }
    ++taken;
  }
  return taken;
}

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

bool CallScanner::Take(char c) {
  switch (at_) {
    case At::kBegin:
      at_ = c == '{' ? At::kKeyOrEnd : At::kBegin;
      return c == '{' || IsSpace(c);
    case At::kKeyOrEnd:
      if (c == '"') {
        key_.clear();
        at_ = At::kKey;
      } else if (c == '}') {
        End();
      }
      return c == '"' || c == '}' || IsSpace(c);
    case At::kKey:
      if (c == '"') {
        at_ = At::kColon;
      } else {
        key_ += c;
      }
      return key_.size() <= kMaxKeyBytes;
    case At::kColon:
      at_ = c == ':' ? At::kValue : At::kColon;
      return c == ':' || IsSpace(c);
    case At::kValue:
      return IsSpace(c) || TakeValueStart(c);
    case At::kString:
      value_ += c;
      if (!escaped_ && c == '"') {
        return EndString();
      }
      escaped_ = !escaped_ && c == '\\';
      return IsArguments() || value_.size() <= kMaxKeyBytes || key_ != "name";
    case At::kNested:
      TakeNested(c);
      return depth_ <= kMaxDepth;
    case At::kPrimitive:
      return TakePrimitive(c);
    case At::kAfterValue:
      if (c == '}') {
        End();
      } else if (c == ',') {
        at_ = At::kKeyOrEnd;
      }
      return c == '}' || c == ',' || IsSpace(c);
  }
  return false;
}

bool CallScanner::TakeValueStart(char c) {
  if (c == '"') {
    value_ = c;
    escaped_ = false;
    at_ = At::kString;
    return true;
  }
  if (key_ == "name") {
    return false;
  }
  if (c == '{' || c == '[') {
    depth_ = 0;
    in_string_ = false;
    at_ = At::kNested;
    has_arguments_ = has_arguments_ || IsArguments();
    TakeNested(c);
    return true;
  }
  at_ = At::kPrimitive;  // null stands for no arguments; other values are no object and are dropped
  return IsPrimitive(c);
}

void CallScanner::TakeNested(char c) {
  if (IsArguments()) {
    arguments_ += c;
  }
  if (in_string_) {
    if (!escaped_ && c == '"') {
      in_string_ = false;
    }
    escaped_ = !escaped_ && c == '\\';
  } else if (c == '"') {
    in_string_ = true;
    escaped_ = false;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    if (--depth_ == 0) {
      at_ = At::kAfterValue;
    }
  }
}

bool CallScanner::TakePrimitive(char c) {
  if (IsPrimitive(c)) {
    return true;
  }
  at_ = At::kAfterValue;
  return Take(c);
}

bool CallScanner::EndString() {
  at_ = At::kAfterValue;
  if (key_ != "name" && !IsArguments()) {
    return true;
  }
  const auto text = nlohmann::json::parse(value_, nullptr, /*allow_exceptions=*/false);
  if (!text.is_string()) {
    return false;
  }
  if (key_ == "name") {
    name_ = text.get<std::string>();
    return !name_.empty();
  }
  has_arguments_ = true;
  arguments_ += text.get<std::string>();
  return true;
}

void CallScanner::End() {
  state_ = name_.empty() ? State::kBroken : State::kDone;
  if (!has_arguments_) {
    arguments_ += "{}";
  }
}

}  // namespace tandem::tool_calls
