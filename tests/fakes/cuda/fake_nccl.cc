// libnccl.so.2 for tests: the functions that device/cuda/nccl_api.h names, over the fake driver's
// streams. A call ends on all devices once it stands first in the stream of each; one that some
// device does not make ends by the deadline as an error of the group, or by an abort. It refuses
// memory and streams of other devices, and ranks whose calls differ.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu_worker/device/cuda/nccl_api.h"
#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/executor.h"
#include "tests/fakes/cuda/handles.h"

namespace tandem::fake_cuda {
namespace {

using gpu_worker::device::kNcclFloat32;
using gpu_worker::device::kNcclSuccess;
using gpu_worker::device::kNcclSum;
using gpu_worker::device::NcclResult;
using Clock = std::chrono::steady_clock;

constexpr NcclResult kInternalError = 3;
constexpr NcclResult kInvalidArgument = 4;
constexpr NcclResult kInvalidUsage = 5;
constexpr NcclResult kRemoteError = 6;
constexpr int kVersion = 22'800;

enum class Kind { kAllReduce, kAllGather };

struct Part {
  bool arrived = false;
  bool left = false;
  Kind kind = Kind::kAllReduce;
  const float* from = nullptr;
  float* to = nullptr;
  size_t count = 0;
};

// One collective of all ranks.
struct Collective {
  std::vector<Part> parts;
  bool done = false;
  Clock::time_point deadline;
};

// "RANK:CALL" of an environment variable: which call of which rank goes wrong.
struct Fault {
  int rank = -1;
  unsigned long long call = 0;
  static Fault Of(const char* name) {
    Fault fault;
    const char* text = std::getenv(name);
    if (text == nullptr || std::sscanf(text, "%d:%llu", &fault.rank, &fault.call) != 2) {
      fault.rank = -1;
    }
    return fault;
  }
};

struct Group {
  std::mutex mutex;
  int size = 0;
  std::map<uint64_t, Collective> collectives;  // those that some rank has not left
  std::vector<uint64_t> begun;                 // by rank: calls that its stream came to
  std::vector<bool> aborted;                   // by rank
  NcclResult error = kNcclSuccess;             // asynchronous
  std::chrono::milliseconds patience{20'000};
  Fault fails = Fault::Of("FAKE_NCCL_FAILS");  // the call returns an error
  Fault lost = Fault::Of("FAKE_NCCL_LOST");    // the call never reaches the device
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank = 0;
  int device = 0;
  uint64_t calls = 0;
  std::shared_ptr<int> in_graphs = std::make_shared<int>();  // kept by each call that one holds
};

void Reduce(std::vector<Part>& parts) {
  std::vector<float> sum(parts[0].from, parts[0].from + parts[0].count);
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += parts[rank].from[i];
    }
  }
  for (const Part& part : parts) {
    std::copy(sum.begin(), sum.end(), part.to);
  }
}

void Gather(std::vector<Part>& parts) {
  for (const Part& to : parts) {
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      std::copy_n(parts[rank].from, to.count, to.to + rank * to.count);
    }
  }
}

// A rank's end of a collective, as its stream sees it: that of the group which all ranks come to as
// their so-manieth. A graph's comes again and again.
class Arrival {
 public:
  Arrival(std::shared_ptr<Group> group, int rank, const Part& part)
      : group_(std::move(group)), rank_(static_cast<size_t>(rank)), part_(part) {}

  bool Ready() {
    const std::lock_guard lock(group_->mutex);
    if (!has_begun_) {
      has_begun_ = true;
      call_ = group_->begun[rank_]++;
    }
    Collective& collective = Get();
    if (!collective.parts[rank_].arrived) {
      collective.parts[rank_] = part_;
      collective.parts[rank_].arrived = true;
      collective.deadline = Clock::now() + group_->patience;
    }
    if (collective.done || AllArrived(collective) || group_->aborted[rank_] ||
        group_->error != kNcclSuccess) {
      return true;
    }
    if (Clock::now() >= collective.deadline) {
      group_->error = kRemoteError;
      return true;
    }
    return false;
  }

  void Run() {
    const std::lock_guard lock(group_->mutex);
    has_begun_ = false;
    Collective& collective = Get();
    const bool sound = group_->error == kNcclSuccess && !group_->aborted[rank_];
    if (sound && !collective.done && AllArrived(collective)) {
      Compute(collective);
    }
    collective.parts[rank_].left = true;
    if (std::all_of(collective.parts.begin(), collective.parts.end(),
                    [](const Part& part) { return part.left; })) {
      group_->collectives.erase(call_);
    }
  }

 private:
  Collective& Get() const {
    Collective& collective = group_->collectives[call_];
    collective.parts.resize(static_cast<size_t>(group_->size));
    return collective;
  }
  static bool AllArrived(const Collective& collective) {
    return std::all_of(collective.parts.begin(), collective.parts.end(),
                       [](const Part& part) { return part.arrived; });
  }
  void Compute(Collective& collective) const {
    for (const Part& part : collective.parts) {
      if (part.kind != part_.kind || part.count != part_.count) {
        group_->error = kInvalidUsage;
        return;
      }
    }
    if (part_.kind == Kind::kAllReduce) {
      Reduce(collective.parts);
    } else {
      Gather(collective.parts);
    }
    collective.done = true;
  }

  std::shared_ptr<Group> group_;
  size_t rank_;
  Part part_;
  bool has_begun_ = false;
  uint64_t call_ = 0;
};

// Calls between ncclGroupStart and ncclGroupEnd, of this thread.
struct PendingCalls {
  int depth = 0;
  std::vector<std::function<void()>> queue;
};

PendingCalls& Pending() {
  thread_local PendingCalls pending;
  return pending;
}

NcclResult Call(Comm* comm, CUstream stream, const Part& part, size_t to_count) {
  const uint64_t call = comm->calls++;
  Group& group = *comm->group;
  if (stream == nullptr || DeviceOf(stream) != comm->device ||
      !IsDeviceMemory(part.from, part.count * sizeof(float), comm->device) ||
      !IsDeviceMemory(part.to, to_count * sizeof(float), comm->device)) {
    return kInvalidArgument;
  }
  Operation operation;
  const bool fails = group.fails.rank == comm->rank && group.fails.call == call;
  if (fails || (group.lost.rank == comm->rank && group.lost.call == call)) {
    operation.run = [group = comm->group, rank = static_cast<size_t>(comm->rank)] {
      const std::lock_guard lock(group->mutex);
      ++group->begun[rank];
    };
  } else {
    const auto arrival = std::make_shared<Arrival>(comm->group, comm->rank, part);
    operation = {[arrival] { return arrival->Ready(); }, [arrival] { arrival->Run(); }};
  }
  const auto queue = [operation, stream, in_graphs = comm->in_graphs] {
    if (Graph* graph = Of(stream)->capture) {
      graph->Add(*Of(stream), {operation.ready, [run = operation.run, in_graphs] { run(); }});
    } else {
      Executor::Get().Queue(Of(stream), operation);
    }
  };
  if (Pending().depth > 0) {
    Pending().queue.emplace_back(queue);
  } else {
    queue();
  }
  return fails ? kInternalError : kNcclSuccess;
}

}  // namespace
}  // namespace tandem::fake_cuda

using namespace tandem::fake_cuda;  // NOLINT: the functions below are C's

extern "C" {

NcclResult ncclGetVersion(int* version) {
  *version = kVersion;
  return kNcclSuccess;
}
const char* ncclGetErrorString(NcclResult result) {
  return result == kNcclSuccess       ? "no error"
         : result == kRemoteError     ? "a fake rank did not come"
         : result == kInvalidUsage    ? "fake ranks differ in their calls"
         : result == kInvalidArgument ? "memory or stream of another fake device"
                                      : "a fake error";
}
NcclResult ncclCommInitAll(void** comms, int count, const int* devices) {
  auto group = std::make_shared<Group>();
  group->size = count;
  group->aborted.resize(static_cast<size_t>(count));
  group->begun.resize(static_cast<size_t>(count));
  if (const char* text = std::getenv("FAKE_NCCL_PATIENCE_MS"); text != nullptr) {
    group->patience = std::chrono::milliseconds(std::atoi(text));
  }
  for (int rank = 0; rank < count; ++rank) {
    comms[rank] = new Comm{group, rank, devices[rank], 0};
  }
  return kNcclSuccess;
}
// The real one waits for the graphs that hold calls of it.
NcclResult ncclCommDestroy(void* comm) {
  const std::unique_ptr<Comm> taken(static_cast<Comm*>(comm));
  if (taken->in_graphs.use_count() > 1) {
    std::fprintf(stderr, "fake NCCL: a communicator is destroyed before its graphs\n");
    std::abort();
  }
  return kNcclSuccess;
}
NcclResult ncclCommAbort(void* comm) {
  const std::unique_ptr<Comm> taken(static_cast<Comm*>(comm));
  const std::lock_guard lock(taken->group->mutex);
  taken->group->aborted[static_cast<size_t>(taken->rank)] = true;
  return kNcclSuccess;
}
NcclResult ncclCommGetAsyncError(void* comm, NcclResult* error) {
  Group& group = *static_cast<Comm*>(comm)->group;
  const std::lock_guard lock(group.mutex);
  *error = group.error;
  return kNcclSuccess;
}
NcclResult ncclAllReduce(const void* from, void* to, size_t count, int type, int operation,
                         void* comm, void* stream) {
  if (type != kNcclFloat32 || operation != kNcclSum) {
    return kInvalidArgument;
  }
  return Call(static_cast<Comm*>(comm), static_cast<CUstream>(stream),
              {false, false, Kind::kAllReduce, static_cast<const float*>(from),
               static_cast<float*>(to), count},
              count);
}
NcclResult ncclAllGather(const void* from, void* to, size_t count, int type, void* comm,
                         void* stream) {
  if (type != kNcclFloat32) {
    return kInvalidArgument;
  }
  auto* of = static_cast<Comm*>(comm);
  return Call(of, static_cast<CUstream>(stream),
              {false, false, Kind::kAllGather, static_cast<const float*>(from),
               static_cast<float*>(to), count},
              count * static_cast<size_t>(of->group->size));
}
NcclResult ncclGroupStart() {
  ++Pending().depth;
  return kNcclSuccess;
}
NcclResult ncclGroupEnd() {
  PendingCalls& pending = Pending();
  if (pending.depth == 0) {
    return kInvalidUsage;
  }
  if (--pending.depth == 0) {
    for (const auto& queue : std::exchange(pending.queue, {})) {
      queue();
    }
  }
  return kNcclSuccess;
}

}  // extern "C"
