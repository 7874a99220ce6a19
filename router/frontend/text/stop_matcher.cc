#include "router/frontend/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop), nodes_(1) {
  for (const std::string& stop : stops) {
    if (!stop.empty()) {
      stops_.push_back(stop);
      Insert(stop, static_cast<int32_t>(stops_.size()) - 1);
    }
  }
  LinkFallbacks();
}

void StopMatcher::Insert(const std::string& stop, int32_t index) {
  int32_t at = 0;
  for (const char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t child = Find(nodes_[static_cast<size_t>(at)], byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      Node node;
      node.depth = nodes_[static_cast<size_t>(at)].depth + 1;
      auto& next = nodes_[static_cast<size_t>(at)].next;
      next.insert(std::upper_bound(next.begin(), next.end(), std::pair<uint8_t, int32_t>(byte, 0)),
                  {byte, child});
      nodes_.push_back(std::move(node));
    }
    at = child;
  }
  nodes_[static_cast<size_t>(at)].stop = index;
}

void StopMatcher::LinkFallbacks() {
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t parent = order[i];
    for (const auto& [byte, child] : nodes_[static_cast<size_t>(parent)].next) {
      Node& node = nodes_[static_cast<size_t>(child)];
      if (parent != 0) {
        node.fallback = Step(nodes_[static_cast<size_t>(parent)].fallback, byte);
      }
      if (node.stop < 0) {
        node.stop = nodes_[static_cast<size_t>(node.fallback)].stop;
      }
      order.push_back(child);
    }
  }
}

int32_t StopMatcher::Find(const Node& node, uint8_t byte) {
  const auto it = std::lower_bound(
      node.next.begin(), node.next.end(), byte,
      [](const std::pair<uint8_t, int32_t>& edge, uint8_t b) { return edge.first < b; });
  return it != node.next.end() && it->first == byte ? it->second : -1;
}

int32_t StopMatcher::Step(int32_t node, uint8_t byte) const {
  while (true) {
    const int32_t child = Find(nodes_[static_cast<size_t>(node)], byte);
    if (child >= 0) {
      return child;
    }
    if (node == 0) {
      return 0;
    }
    node = nodes_[static_cast<size_t>(node)].fallback;
  }
}

void StopMatcher::Append(std::string_view text, std::string* out) {
  if (hit_) {
    return;
  }
  if (nodes_.size() == 1) {
    out->append(text);
    return;
  }
  held_.append(text);
  const size_t old_bytes = held_.size() - text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = Step(state_, static_cast<uint8_t>(text[i]));
    const int32_t stop = nodes_[static_cast<size_t>(state_)].stop;
    if (stop >= 0) {
      hit_ = stops_[static_cast<size_t>(stop)];
      const size_t end = old_bytes + i + 1;
      out->append(held_, 0, include_stop_ ? end : end - hit_->size());
      held_.clear();
      return;
    }
  }
  const size_t keep = static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
}

void StopMatcher::AppendUnchecked(std::string_view text, std::string* out) {
  if (hit_) {
    return;
  }
  Flush(out);
  out->append(text);
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
  state_ = 0;
}

}  // namespace tandem::text
