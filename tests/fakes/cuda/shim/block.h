#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/cuda/shim/fiber.h"
#include "tests/fakes/cuda/shim/race_detector.h"

// The block that a host thread is running, as its threads see it.
namespace tandem::shim {

inline constexpr uint32_t kWarp = 32;

struct Index3 {
  uint32_t x = 0;
  uint32_t y = 0;
  uint32_t z = 0;
};

// What lanes give each other in one warp operation.
struct LaneValue {
  uint64_t words[6];
};

enum class WarpOperation : uint8_t { kSync, kShuffle, kVote, kMatrix };

// A copy of cp.async that has not been waited for.
struct PendingCopy {
  std::byte* to;
  const std::byte* from;  // null: zeros
  uint32_t bytes;
  uint32_t group;
};

class Block;

extern bool watch_shared_memory;  // as WatchSharedMemory set it

// A thread of the running block.
struct Thread {
  Block* block = nullptr;
  Index3 index;
  uint32_t number = 0;
  uint32_t warp = 0;
  uint32_t lane = 0;
  uint32_t warp_syncs = 0;  // that it passed
  uint32_t copy_group = 0;
  enum class State : uint8_t { kReady, kAtWarp, kAtBlock, kEnded } state = State::kReady;
  std::vector<PendingCopy> copies;
};

class Block {
 public:
  struct Shape {
    Index3 grid;
    Index3 block;
    uint32_t shared_bytes = 0;
  };

  Block();
  ~Block();

  // Runs one block of a kernel; `run` is the kernel's body.
  void Run(const char* kernel, void (*run)(const void*), const void* params, bool syncs);

  Shape shape;
  Index3 index;

  // Of the running thread:
  void SyncBlock();
  // Gives `mine` and returns what the 32 lanes gave. All lanes take part in every operation.
  const LaneValue* Exchange(WarpOperation operation, const LaneValue& mine);
  void SyncWarp();
  // A place in the block's shared memory: the dynamic part, or a static one by its key.
  std::byte* dynamic_shared() { return shared_.data() + kGuardBytes; }
  std::byte* StaticShared(const void* key, size_t bytes);
  void OnShared(const std::byte* at, size_t bytes, Access access);
  void CopyAsync(std::byte* to, const std::byte* from, uint32_t bytes);
  void CommitCopies();
  void WaitCopies(uint32_t pending);

  void Fault(const std::string& what);

 private:
  struct Warp {
    LaneValue values[2][kWarp];
    uint32_t arrived = 0;  // lanes
    uint32_t generation = 0;
    WarpOperation operation = WarpOperation::kSync;
  };
  struct StaticPart {
    const void* key;
    size_t offset;
  };

  static constexpr size_t kGuardBytes = 256;
  static constexpr size_t kStaticBytes = size_t{48} << 10;

  void Prepare(uint32_t threads);
  void RunFibers();
  void RunInTurn();
  bool RunWarp(uint32_t warp);
  void Suspend(Thread::State state);
  void CheckGuards();
  size_t dynamic_bytes() const { return (shape.shared_bytes + 15u) / 16u * 16u; }
  static void ThreadMain(void* thread);

  const char* kernel_ = "";
  void (*run_)(const void*) = nullptr;
  const void* params_ = nullptr;
  bool fibers_ = false;
  std::vector<std::unique_ptr<Fiber>> pool_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  std::vector<StaticPart> static_parts_;
  size_t static_end_ = 0;
  RaceDetector races_;
  uint32_t block_syncs_ = 0;  // of all blocks that ran here: an access of an earlier one is ordered
  uint32_t at_block_ = 0;
  uint32_t ended_ = 0;
};

// The running thread; valid inside a kernel.
extern constinit thread_local Thread* current_thread;
inline Thread& CurrentThread() { return *current_thread; }

// Of an access to element `i` of `count` in shared memory.
void OutOfBounds(int i, int count);

// The tensor core's product (intrinsics.cuh says which lane holds what): c [16, 8] += a [16, 16] *
// b [16, 8], the running thread's part of it.
enum class MatrixType : uint8_t { kHalf, kBFloat16 };
void MultiplyMatrices(Block& block, MatrixType type, const uint32_t (&a)[4], const uint32_t (&b)[2],
                      float (&c)[4]);
// Round to nearest even; beyond its range infinity.
uint16_t HalfOfFloat(float value);
// Gives the core to the process's other threads.
void YieldHost();

}  // namespace tandem::shim
