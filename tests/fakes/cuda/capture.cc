#include "tests/fakes/cuda/capture.h"

#include <utility>

namespace tandem::fake_cuda {
namespace {

// A launch of a graph, shared by its operations.
struct GraphRun {
  bool started = false;
  std::vector<bool> done;  // nodes
  std::vector<uint64_t> tickets;
  std::vector<std::shared_ptr<Stream>> streams;
};

void FinishNode(GraphRun& run, size_t node, Event* record) {
  const std::lock_guard lock(Executor::Get().mutex());
  run.done[node] = true;
  if (record != nullptr) {
    record->Reach(run.tickets[node]);
  }
}

}  // namespace

void Graph::Join(const std::shared_ptr<Stream>& stream) {
  stream->capture = this;
  stream->branch = num_branches_++;
  stream->frontier.clear();
  branches_.push_back(stream);
}

void Graph::Add(Stream& stream, Operation operation) {
  nodes_.push_back({stream.branch, std::move(operation), nullptr, stream.frontier});
  stream.frontier = {nodes_.size() - 1};
}

void Graph::AddRecord(Stream& stream, const std::shared_ptr<Event>& event) {
  Add(stream, {nullptr, [] {}});
  nodes_.back().record = event;
}

void Graph::Record(const Stream& stream, Event& event) {
  event.capture = this;
  event.frontier = stream.frontier;
}

CUresult Graph::Wait(const std::shared_ptr<Stream>& stream, const Event& event) {
  if (stream->capture == nullptr) {
    Join(stream);
  }
  if (stream->capture != this || event.capture != this) {
    Invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  stream->frontier.insert(stream->frontier.end(), event.frontier.begin(), event.frontier.end());
  return CUDA_SUCCESS;
}

CUresult Graph::End(const Stream& origin) {
  std::vector<bool> reached(nodes_.size());
  std::vector<size_t> open = origin.frontier;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (!reached[node]) {
      reached[node] = true;
      open.insert(open.end(), nodes_[node].after.begin(), nodes_[node].after.end());
    }
  }
  CUresult result = is_valid_ ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (const bool each : reached) {
    if (!each && is_valid_) {
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
  }
  for (const std::shared_ptr<Stream>& stream : std::exchange(branches_, {})) {
    stream->capture = nullptr;
    stream->frontier.clear();
  }
  return result;
}

void Graph::Launch(const std::shared_ptr<Stream>& stream) const {
  Executor& executor = Executor::Get();
  const auto run = std::make_shared<GraphRun>();
  run->done.resize(nodes_.size());
  run->tickets.resize(nodes_.size());
  for (size_t i = 0; i < num_branches_; ++i) {
    run->streams.push_back(std::make_shared<Stream>());
    executor.Add(run->streams.back());
  }
  executor.Queue(stream, {nullptr, [run] {
                            const std::lock_guard lock(Executor::Get().mutex());
                            run->started = true;
                          }});
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.record != nullptr) {
      const std::lock_guard lock(executor.mutex());
      run->tickets[i] = ++node.record->recorded;
    }
    const auto ready = [run, after = node.after, also = node.operation.ready] {
      for (const size_t other : after) {
        if (!run->done[other]) {
          return false;
        }
      }
      return run->started && (also == nullptr || also());
    };
    executor.Queue(run->streams[node.branch],
                   {ready, [run, i, work = node.operation.run, record = node.record] {
                      work();
                      FinishNode(*run, i, record.get());
                    }});
  }
  const auto all_done = [run] {
    for (const bool each : run->done) {
      if (!each) {
        return false;
      }
    }
    return true;
  };
  executor.Queue(stream, {all_done, [run] {
                            for (const std::shared_ptr<Stream>& branch : run->streams) {
                              Executor::Get().Remove(branch);
                            }
                          }});
}

}  // namespace tandem::fake_cuda
