#include "gpu_worker/device/host/host_device.h"

#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/device/host/host_stream.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kCacheLine = 64;

class HostBuffer : public Buffer {
 public:
  HostBuffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~HostBuffer() override { std::free(data_); }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

// Runs on the compute stream's thread: makes the team and gives each of its threads a core.
void StartTeam(int num_threads, const std::vector<int>& cores) {
  omp_set_dynamic(0);
  omp_set_num_threads(num_threads);
  int team = 1;
#pragma omp parallel
  {
    const int index = omp_get_thread_num();
    const int size = omp_get_num_threads();
    if (index == 0) {
      team = size;
    }
    if (size > 1 && static_cast<size_t>(size) <= cores.size()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cores[index], &set);
      sched_setaffinity(0, sizeof(set), &set);  // best effort
    }
  }
  // OMP_THREAD_LIMIT may give fewer threads than were asked for. oneDNN shares work out by the
  // number asked for and would leave a part undone.
  omp_set_num_threads(team);
}

// The number after `key` in a file of "key: number kB" or a bare number; 0 when it is not there.
uint64_t ReadNumber(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t number = 0;
    if (key.empty() && words.size() == 1 && absl::SimpleAtoi(words[0], &number)) {
      return number;
    }
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) {
      return number;
    }
  }
  return 0;
}

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options) : cores_(AllowedCores()) {
    num_threads_ = options.num_threads > 0 ? options.num_threads
                                           : std::max<int>(1, static_cast<int>(cores_.size()));
  }

  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string_view name() const override { return "host"; }
  bool has_copy_engine() const override { return false; }

  MemoryInfo memory() const override { return HostMemory(); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, const char* what) override {
    if (bytes > memory().total_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, " needs ", bytes, " bytes; the host has ", memory().total_bytes));
    }
    const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
    const size_t rounded = (std::max(bytes, size_t{1}) + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, rounded);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " bytes not available"));
    }
    if (alignment == kHugePage) {
      madvise(data, rounded, MADV_HUGEPAGE);  // best effort: 4 KiB pages cost 13-34%
    }
    return std::make_unique<HostBuffer>(static_cast<std::byte*>(data), bytes);
  }

  std::unique_ptr<Stream> CreateComputeStream() override {
    return std::make_unique<HostStream>(
        "compute", [threads = num_threads_, cores = cores_] { StartTeam(threads, cores); });
  }

  std::unique_ptr<Stream> CreateTransferStream() override {
    return std::make_unique<HostStream>("transfer", nullptr);
  }

  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<HostEvent>(); }

 private:
  std::vector<int> cores_;
  int num_threads_ = 1;
};

}  // namespace

MemoryInfo HostMemory() {
  MemoryInfo info;
  info.free_bytes = ReadNumber("/proc/meminfo", "MemAvailable:") * 1024;
  info.total_bytes = ReadNumber("/proc/meminfo", "MemTotal:") * 1024;
  // A container's limit, where there is one.
  const uint64_t limit = ReadNumber("/sys/fs/cgroup/memory.max", "");
  if (limit > 0 && limit < info.total_bytes) {
    const uint64_t used = ReadNumber("/sys/fs/cgroup/memory.current", "");
    info.total_bytes = limit;
    info.free_bytes = std::min(info.free_bytes, limit > used ? limit - used : 0);
  }
  return info;
}

std::unique_ptr<Device> CreateHostDevice(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace tandem::gpu_worker::device
