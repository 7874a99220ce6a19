#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::cli {

// Cuts a server-sent event stream into events, whatever pieces it arrives in. Only `data` fields
// are kept. Not thread-safe.
class SseParser {
 public:
  // Takes the next piece; returns the data of the events that it completes. Lines of one event are
  // joined by newlines.
  std::vector<std::string> Feed(std::string_view piece);
  // Bytes of the event that is not complete yet.
  size_t pending_bytes() const { return line_.size() + data_.size(); }

 private:
  void EndLine(std::vector<std::string>* events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace tandem::cli
