#include "tests/fakes/cuda/shim/block.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <sstream>
#include <utility>

#include "tests/fakes/cuda/shim/grid.h"

namespace tandem::shim {
namespace {

constexpr uint8_t kGarbage = 0xff;  // NaN in every float type
constexpr uint8_t kGuard = 0xa5;
constexpr size_t kMaxFaultBytes = 4000;

struct FaultLog {
  std::mutex mutex;
  std::string text;
};
FaultLog& Faults() {
  static FaultLog* log = new FaultLog;  // kernels may run while the process ends
  return *log;
}

}  // namespace

constinit thread_local Thread* current_thread = nullptr;

std::string TakeFaults() {
  FaultLog& log = Faults();
  const std::lock_guard lock(log.mutex);
  return std::exchange(log.text, {});
}

Block::Block() = default;
Block::~Block() = default;

void Block::Fault(const std::string& what) {
  std::ostringstream line;
  line << kernel_ << ": block (" << index.x << ", " << index.y << ", " << index.z << ")";
  if (current_thread != nullptr) {
    line << " thread " << current_thread->number;
  }
  line << ": " << what << "\n";
  FaultLog& log = Faults();
  const std::lock_guard lock(log.mutex);
  if (log.text.size() < kMaxFaultBytes) {
    log.text += line.str();
  }
}

void Block::Prepare(uint32_t threads) {
  const size_t bytes = kGuardBytes + dynamic_bytes() + kGuardBytes + kStaticBytes;
  if (shared_.size() < bytes) {
    shared_.resize(bytes);
  }
  std::memset(shared_.data(), kGuard, kGuardBytes);
  std::memset(dynamic_shared(), kGarbage, dynamic_bytes());
  std::memset(dynamic_shared() + dynamic_bytes(), kGuard, kGuardBytes);
  races_.Reserve(bytes);
  static_parts_.clear();
  static_end_ = kGuardBytes + dynamic_bytes() + kGuardBytes;
  threads_.resize(threads);
  warps_.resize((threads + kWarp - 1) / kWarp);
  for (Warp& warp : warps_) {
    warp.arrived = 0;
  }
  for (uint32_t i = 0; i < threads; ++i) {
    Thread& thread = threads_[i];
    thread.block = this;
    thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y,
                    i / (shape.block.x * shape.block.y)};
    thread.number = i;
    thread.warp = i / kWarp;
    thread.lane = i % kWarp;
    thread.warp_syncs = 0;
    thread.copy_group = 0;
    thread.state = Thread::State::kReady;
    thread.copies.clear();
  }
  ++block_syncs_;
  at_block_ = 0;
  ended_ = 0;
}

void Block::Run(const char* kernel, void (*run)(const void*), const void* params, bool syncs) {
  kernel_ = kernel;
  run_ = run;
  params_ = params;
  fibers_ = syncs;
  Prepare(shape.block.x * shape.block.y * shape.block.z);
  if (syncs) {
    RunFibers();
  } else {
    RunInTurn();
  }
  CheckGuards();
}

void Block::RunInTurn() {
  for (Thread& thread : threads_) {
    current_thread = &thread;
    run_(params_);
  }
  current_thread = nullptr;
}

void Block::ThreadMain(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  thread->block->run_(thread->block->params_);
}

bool Block::RunWarp(uint32_t warp) {
  const auto end = std::min<size_t>(threads_.size(), size_t{warp + 1} * kWarp);
  bool ran = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = size_t{warp} * kWarp; i < end; ++i) {
      Thread& thread = threads_[i];
      if (thread.state != Thread::State::kReady) {
        continue;
      }
      current_thread = &thread;
      pool_[i]->Resume();
      again = ran = true;
      if (pool_[i]->ended()) {
        thread.state = Thread::State::kEnded;
        ++ended_;
        if (!thread.copies.empty()) {
          Fault("ended with asynchronous copies that it did not wait for");
        }
      }
    }
  }
  current_thread = nullptr;
  return ran;
}

void Block::RunFibers() {
  while (pool_.size() < threads_.size()) {
    pool_.push_back(Fiber::Create());
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    pool_[i]->Start(&Block::ThreadMain, &threads_[i]);
  }
  bool progress = true;
  while (progress && ended_ < threads_.size()) {
    progress = false;
    for (uint32_t warp = 0; warp < warps_.size(); ++warp) {
      progress |= RunWarp(warp);
    }
  }
  if (ended_ < threads_.size()) {
    Fault("threads wait for others that never come to the same barrier or warp operation");
    pool_.clear();  // their stacks hold threads that will never go on
  }
}

void Block::Suspend(Thread::State state) {
  Thread& thread = *current_thread;
  thread.state = state;
  pool_[thread.number]->Suspend();
}

void Block::SyncBlock() {
  if (!fibers_) {
    Fault("a barrier in a kernel that is declared to have none");
    return;
  }
  if (++at_block_ < threads_.size()) {
    Suspend(Thread::State::kAtBlock);
    return;
  }
  at_block_ = 0;
  ++block_syncs_;
  for (Thread& thread : threads_) {
    thread.state = Thread::State::kReady;
  }
}

const LaneValue* Block::Exchange(WarpOperation operation, const LaneValue& mine) {
  if (!fibers_) {
    Fault("a warp operation in a kernel that is declared to have none");
    static const LaneValue kNothing[kWarp] = {};
    return kNothing;
  }
  Thread& thread = *current_thread;
  Warp& warp = warps_[thread.warp];
  if (warp.arrived == 0) {
    warp.operation = operation;
  } else if (warp.operation != operation) {
    Fault("the lanes of a warp are at different warp operations");
  }
  LaneValue* values = warp.values[warp.generation % 2];
  values[thread.lane] = mine;
  if (++warp.arrived < kWarp) {
    Suspend(Thread::State::kAtWarp);
    return values;
  }
  warp.arrived = 0;
  ++warp.generation;
  for (size_t i = size_t{thread.warp} * kWarp; i < size_t{thread.warp + 1} * kWarp; ++i) {
    threads_[i].state = Thread::State::kReady;
  }
  return values;
}

void Block::SyncWarp() {
  Exchange(WarpOperation::kSync, LaneValue());
  ++current_thread->warp_syncs;
}

std::byte* Block::StaticShared(const void* key, size_t bytes) {
  for (const StaticPart& part : static_parts_) {
    if (part.key == key) {
      return shared_.data() + part.offset;
    }
  }
  const size_t offset = static_end_;
  static_end_ += (bytes + 15) / 16 * 16;
  if (static_end_ > shared_.size()) {
    Fault("more than 48 KiB of static shared memory");
    static_end_ = offset;
    return shared_.data() + kGuardBytes;
  }
  static_parts_.push_back({key, offset});
  std::memset(shared_.data() + offset, kGarbage, bytes);
  return shared_.data() + offset;
}

bool watch_shared_memory = true;

void WatchSharedMemory(bool watch) { watch_shared_memory = watch; }

void Block::OnShared(const std::byte* at, size_t bytes, Access access) {
  if (!watch_shared_memory) {
    return;
  }
  const Thread& thread = *current_thread;
  const auto offset = static_cast<size_t>(at - shared_.data());
  if ((reinterpret_cast<uintptr_t>(at) & (bytes - 1)) != 0) {
    Fault("a misaligned access to shared memory");
  }
  const auto other =
      races_.OnAccess(offset, bytes, {thread.number, block_syncs_, thread.warp_syncs}, access);
  if (other.has_value()) {
    std::ostringstream what;
    what << "a race in shared memory: " << (access == Access::kRead ? "reads" : "writes")
         << " byte " << offset - kGuardBytes << " without a barrier since thread ";
    if (*other < threads_.size()) {
      what << *other << "'s access";
    } else {
      what << "several threads' accesses";
    }
    Fault(what.str());
  }
}

void OutOfBounds(int i, int count) {
  std::ostringstream what;
  what << "element " << i << " of " << count << " in shared memory";
  CurrentThread().block->Fault(what.str());
}

void Block::CopyAsync(std::byte* to, const std::byte* from, uint32_t bytes) {
  OnShared(to, bytes, Access::kWrite);
  std::memset(to, kGarbage, bytes);  // what is read before the wait
  current_thread->copies.push_back({to, from, bytes, current_thread->copy_group});
}

void Block::CommitCopies() { ++current_thread->copy_group; }

void Block::WaitCopies(uint32_t pending) {
  Thread& thread = *current_thread;
  std::vector<PendingCopy>& copies = thread.copies;
  size_t kept = 0;
  for (const PendingCopy& copy : copies) {
    if (copy.group + pending >= thread.copy_group) {
      copies[kept++] = copy;
      continue;
    }
    OnShared(copy.to, copy.bytes, Access::kWrite);
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  copies.resize(kept);
}

void Block::CheckGuards() {
  const std::byte* behind = dynamic_shared() + dynamic_bytes();
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (shared_[i] != std::byte{kGuard} || behind[i] != std::byte{kGuard}) {
      Fault("wrote outside of its shared memory");
      return;
    }
  }
}

}  // namespace tandem::shim
