#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/fakes/cuda/executor.h"

// Graphs of the fake driver: what streams would have done, by stream, with what they wait for.
namespace tandem::fake_cuda {

class Graph {
 public:
  // Of a stream that captures into this graph (all of these).
  void Add(Stream& stream, Operation operation);
  // A record of `event` that each launch repeats.
  void AddRecord(Stream& stream, const std::shared_ptr<Event>& event);
  void Record(const Stream& stream, Event& event);
  // `stream` may be one that does not capture yet: it joins.
  CUresult Wait(const std::shared_ptr<Stream>& stream, const Event& event);
  // Ends the capture for all its streams. `origin` must have been made to wait for all others.
  CUresult End(const Stream& origin);
  void Begin(const std::shared_ptr<Stream>& origin) { Join(origin); }
  void Invalidate() { is_valid_ = false; }
  bool is_valid() const { return is_valid_; }

  // Queues everything on streams of its own, between what `stream` has and what it gets next.
  void Launch(const std::shared_ptr<Stream>& stream) const;

 private:
  struct Node {
    size_t branch = 0;
    Operation operation;
    std::shared_ptr<Event> record;
    std::vector<size_t> after;  // nodes
  };

  void Join(const std::shared_ptr<Stream>& stream);

  std::vector<Node> nodes_;
  std::vector<std::shared_ptr<Stream>> branches_;  // while it is captured
  size_t num_branches_ = 0;
  bool is_valid_ = true;
};

// What the calling thread captures into, between a capture's begin and its end; else null.
Graph*& Capturing();

}  // namespace tandem::fake_cuda
