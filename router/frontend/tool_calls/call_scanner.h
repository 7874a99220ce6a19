#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::tool_calls {

// Reads one call as a model writes it, {"name": "f", "arguments": {...}} ("parameters" is the same
// as "arguments"), as it comes. Not thread-safe.
class CallScanner {
 public:
  enum class State { kOpen, kDone, kBroken };

  // The number of characters taken: all of them, or those up to the object's end or to the one that
  // cannot stand there.
  size_t Feed(std::string_view text);

  State state() const { return state_; }
  // Empty until it is complete.
  const std::string& name() const { return name_; }
  // A value has just ended: the object goes on or ends.
  bool after_value() const { return at_ == At::kAfterValue; }
  // What the arguments gained since the last call: their text as the model wrote it, or the text in
  // them where they are a string.
  std::string TakeArguments();

 private:
  enum class At {
    kBegin,
    kKeyOrEnd,
    kKey,
    kColon,
    kValue,
    kString,
    kNested,
    kPrimitive,
    kAfterValue
  };

  bool Take(char c);
  bool TakeValueStart(char c);
  void TakeNested(char c);
  bool TakePrimitive(char c);
  bool EndString();
  void End();
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  State state_ = State::kOpen;
  At at_ = At::kBegin;
  std::string key_;
  std::string value_;  // a string, as it is written
  std::string name_;
  std::string arguments_;
  bool has_arguments_ = false;
  bool escaped_ = false;
  bool in_string_ = false;  // of a nested value
  int depth_ = 0;
};

}  // namespace tandem::tool_calls
