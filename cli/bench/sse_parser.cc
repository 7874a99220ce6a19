#include "cli/bench/sse_parser.h"

namespace tandem::cli {

std::vector<std::string> SseParser::Feed(std::string_view piece) {
  std::vector<std::string> events;
  while (!piece.empty()) {
    const size_t end = piece.find('\n');
    line_.append(piece.substr(0, end));
    if (end == std::string_view::npos) {
      break;
    }
    EndLine(&events);
    piece.remove_prefix(end + 1);
  }
  return events;
}

void SseParser::EndLine(std::vector<std::string>* events) {
  if (!line_.empty() && line_.back() == '\r') {
    line_.pop_back();
  }
  if (line_.empty()) {
    if (has_data_) {
      events->push_back(std::move(data_));
    }
    data_.clear();
    has_data_ = false;
  } else if (line_.compare(0, 5, "data:") == 0) {
    const size_t first = line_.size() > 5 && line_[5] == ' ' ? 6 : 5;
    data_ += has_data_ ? "\n" : "";
    data_.append(line_, first);
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace tandem::cli
