#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::text {

// Finds stop strings in a text that comes in pieces. Sends on at once what can be no part of a stop
// string; holds back exactly the longest tail that may still become one. The stop that completes
// first wins; of two that complete on the same character the longer. The result does not depend on
// how the text falls into pieces. Linear time in the text (an Aho-Corasick automaton over bytes).
// Not thread-safe.
class StopMatcher {
 public:
  // Empty strings are ignored. `include_stop`: the stop string itself is sent.
  StopMatcher(const std::vector<std::string>& stops, bool include_stop);

  // Appends to `out` what may be sent after `text`. After a hit further text is ignored.
  void Append(std::string_view text, std::string* out);
  // Sends what is held and `text`, in which no stop string may begin or end (min_tokens).
  void AppendUnchecked(std::string_view text, std::string* out);
  // The text ends: appends what was held back.
  void Flush(std::string* out);

  // The stop string that ended the text.
  const std::optional<std::string>& hit() const { return hit_; }

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> next;  // sorted by byte
    int32_t fallback = 0;
    int32_t depth = 0;
    int32_t stop = -1;  // longest stop string that ends here
  };

  void Insert(const std::string& stop, int32_t index);
  void LinkFallbacks();
  int32_t Step(int32_t node, uint8_t byte) const;
  static int32_t Find(const Node& node, uint8_t byte);

  std::vector<std::string> stops_;
  bool include_stop_;
  std::vector<Node> nodes_;
  int32_t state_ = 0;
  std::string held_;
  std::optional<std::string> hit_;
};

}  // namespace tandem::text
