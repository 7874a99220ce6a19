#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// Runs GPU kernels that were compiled for the CPU: blocks one after another on the calling thread,
// the threads of a block as fibers. Watches shared memory for races and every access for bounds.
namespace tandem::shim {

// Runs the whole grid; returns false where no kernel has that name. `params` points to the kernel's
// one parameter. Any thread, several at once.
bool RunKernel(const char* name, const uint32_t grid[3], const uint32_t block[3],
               uint32_t shared_bytes, const void* params);

// Size of the kernel's parameter; 0: there is no such kernel.
size_t KernelParamsBytes(const char* name);

// Whether accesses to shared memory are checked for races and alignment (they are at first), which
// takes most of a kernel's time. Not while a kernel runs.
void WatchSharedMemory(bool watch);

// What kernels did wrong since the last call (races, accesses out of bounds, barriers that not all
// threads reach, misaligned vectors), a line each; empty when nothing.
std::string TakeFaults();

// Made by TANDEM_KERNEL at namespace scope.
struct KernelEntry {
  const char* name;
  size_t params_bytes;
  uint32_t max_threads;
  bool syncs;  // whether its threads meet: otherwise they run one after another without fibers
  void (*run)(const void* params);
};
class Registration {
 public:
  explicit Registration(const KernelEntry& entry);
};

}  // namespace tandem::shim
