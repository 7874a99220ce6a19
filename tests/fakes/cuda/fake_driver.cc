// libcuda.so.1 for tests: the functions that device/cuda/driver_api.h names, over the host's
// memory. Kernels are those of the program, compiled for the CPU (shim/). It is stricter than the
// real one where that finds faults: copies want pinned memory, words registered memory, and
// everything runs as late as it may.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/counts.h"
#include "tests/fakes/cuda/executor.h"
#include "tests/fakes/cuda/handles.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/shim/grid.h"

namespace tandem::fake_cuda {
namespace {

constexpr size_t kMemoryBytes = size_t{2} << 30;
constexpr size_t kScrambledBytes = size_t{16} << 20;  // larger ones stay untouched
constexpr size_t kAlignment = 256;
constexpr int kNaN = 0xff;  // bytes of fresh memory: NaN in every type

int NumDevices() {
  const char* count = std::getenv("FAKE_CUDA_DEVICES");
  return count != nullptr ? std::clamp(std::atoi(count), 1, kMaxDevices) : 1;
}

bool IsDevice(CUdeviceptr begin, size_t bytes, CUstream stream) {
  return stream != nullptr &&
         IsDeviceMemory(reinterpret_cast<const void*>(begin), bytes, DeviceOf(stream));
}

struct AtomicCounts {
  std::atomic<uint64_t> kernels{0};
  std::atomic<uint64_t> copies_to_host{0};
  std::atomic<uint64_t> copies_to_device{0};
  FakeCudaCounts Read() const { return {kernels, copies_to_host, copies_to_device}; }
};

AtomicCounts& Counts() {
  static AtomicCounts counts;
  return counts;
}

CUresult Queue(CUstream stream, std::function<void()> run, std::function<bool()> ready = nullptr) {
  if (stream == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (DeviceOf(stream) != CurrentDevice()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (Graph* graph = Of(stream)->capture) {
    if (!graph->is_valid()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    graph->Add(*Of(stream), {std::move(ready), std::move(run)});
    return CUDA_SUCCESS;
  }
  Executor::Get().AwaitRoom(Of(stream));
  Executor::Get().Queue(Of(stream), {std::move(ready), std::move(run)});
  return CUDA_SUCCESS;
}

// What kernels did wrong so far; like a real fault it stays.
std::string& Faults() {
  static auto* faults = new std::string;
  return *faults;
}

CUresult Health() {
  const std::lock_guard lock(Executor::Get().mutex());
  Faults() += shim::TakeFaults();
  return Faults().empty() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

// 10 * major + minor of the compute capability.
int Capability() {
  const char* capability = std::getenv("FAKE_CUDA_CAPABILITY");
  return capability != nullptr ? std::atoi(capability) : 86;
}

// Whether stream memory operations work, on this stream now.
CUresult CheckWords(CUstream stream) {
  if (std::getenv("FAKE_CUDA_NO_WORDS") != nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (Of(stream)->capture != nullptr && std::getenv("FAKE_CUDA_NO_GRAPH_WORDS") != nullptr) {
    Of(stream)->capture->Invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

uint32_t LoadWord(CUdeviceptr address) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
}

}  // namespace
}  // namespace tandem::fake_cuda

using namespace tandem::fake_cuda;  // NOLINT: the functions below are C's

extern "C" {

void fakeCudaCounts(FakeCudaCounts* counts) { *counts = Counts().Read(); }

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS                 ? "no error"
          : error == CUDA_ERROR_NOT_READY       ? "not ready"
          : error == CUDA_ERROR_ILLEGAL_ADDRESS ? Faults().c_str()
                                                : "fake CUDA refuses this";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = NumDevices();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < NumDevices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::strncpy(name, "fake GPU of the tests", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const int sm = Capability();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = sm / 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = sm % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 4;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = sm == 75 ? 64 << 10 : 99 << 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
// A context is its device's number, counted from 1.
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
  CurrentDevice() = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) {
  if (CurrentDevice() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const std::lock_guard lock(GetMemory().mutex);
  *total = kMemoryBytes;
  *free_bytes = kMemoryBytes - std::min(kMemoryBytes, GetMemory().used[CurrentDevice()]);
  return Health();
}
CUresult cuMemAlloc(CUdeviceptr* data, size_t bytes) {
  const int device = CurrentDevice();
  if (device < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (Capturing() != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Memory& memory = GetMemory();
  const std::lock_guard lock(memory.mutex);
  if (bytes == 0 || bytes > kMemoryBytes - std::min(kMemoryBytes, memory.used[device])) {
    return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (bytes <= kScrambledBytes) {
    std::memset(block, kNaN, bytes);
  }
  memory.used[device] += bytes;
  memory.device[device][reinterpret_cast<uintptr_t>(block)] = bytes;
  *data = reinterpret_cast<CUdeviceptr>(block);
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr data) {
  Memory& memory = GetMemory();
  const std::lock_guard lock(memory.mutex);
  const int device = CurrentDevice();
  if (device < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const auto found = memory.device[device].find(static_cast<uintptr_t>(data));
  if (found == memory.device[device].end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memory.used[device] -= found->second;
  memory.device[device].erase(found);
  std::free(reinterpret_cast<void*>(data));
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  if (posix_memalign(data, kAlignment, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (bytes <= kScrambledBytes) {
    std::memset(*data, kNaN, bytes);
  }
  const std::lock_guard lock(GetMemory().mutex);
  GetMemory().pinned[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* data) {
  const std::lock_guard lock(GetMemory().mutex);
  if (GetMemory().pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(data);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* data, size_t bytes, unsigned) {
  const std::lock_guard lock(GetMemory().mutex);
  const bool is_new =
      GetMemory().pinned.try_emplace(reinterpret_cast<uintptr_t>(data), bytes).second;
  return is_new ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult cuMemHostUnregister(void* data) {
  const std::lock_guard lock(GetMemory().mutex);
  return GetMemory().pinned.erase(reinterpret_cast<uintptr_t>(data)) == 1
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (!IsDevice(to, bytes, stream) || !IsPinnedWhole(from, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++Counts().copies_to_device;
  return Queue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (!IsDevice(from, bytes, stream) || !IsPinnedWhole(to, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++Counts().copies_to_host;
  return Queue(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  if (!IsDevice(to, bytes, stream)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Queue(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
  if (CurrentDevice() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto* handle = new StreamHandle{std::make_shared<Stream>(), CurrentDevice()};
  Executor::Get().Add(handle->stream);
  *stream = reinterpret_cast<CUstream>(handle);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  if (Of(stream)->capture != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Executor::Get().AwaitIdle(Of(stream));
  return Health();
}
CUresult cuStreamDestroy(CUstream stream) {
  Executor::Get().AwaitIdle(Of(stream));
  Executor::Get().Remove(Of(stream));
  delete reinterpret_cast<StreamHandle*>(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (Capturing() != nullptr && Of(event)->capture != nullptr) {
    return Capturing()->Wait(Of(stream), *Of(event));
  }
  if (Of(stream)->capture != nullptr || Of(event)->capture != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(Executor::Get().mutex());
    ticket = Of(event)->recorded;
  }
  return Queue(
      stream, [] {}, [event = Of(event), ticket] { return event->reached >= ticket; });
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (const CUresult words = CheckWords(stream); words != CUDA_SUCCESS) {
    return words;
  }
  if (!IsPinned(reinterpret_cast<const void*>(address), sizeof(value))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Queue(stream, [=] {
    __atomic_store_n(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_RELEASE);
  });
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  if (const CUresult words = CheckWords(stream); words != CUDA_SUCCESS) {
    return words;
  }
  if (flags != CU_STREAM_WAIT_VALUE_GEQ ||
      !IsPinned(reinterpret_cast<const void*>(address), sizeof(value))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Queue(
      stream, [] {}, [=] { return static_cast<int32_t>(LoadWord(address) - value) >= 0; });
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return Queue(stream, [=] { function(data); });
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new EventHandle{std::make_shared<Event>(), CurrentDevice()});
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  delete reinterpret_cast<EventHandle*>(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (reinterpret_cast<EventHandle*>(event)->device != DeviceOf(stream)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (Graph* graph = Of(stream)->capture) {
    graph->Record(*Of(stream), *Of(event));
    return CUDA_SUCCESS;
  }
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(Executor::Get().mutex());
    ticket = ++Of(event)->recorded;
    Of(event)->capture = nullptr;
  }
  const auto reach = [event = Of(event), ticket] {
    const std::lock_guard lock(Executor::Get().mutex());
    event->Reach(ticket);
  };
  if (Executor::Get().IsIdle(Of(stream))) {
    reach();
    return CUDA_SUCCESS;
  }
  return Queue(stream, reach);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  Graph* graph = Of(stream)->capture;
  if (flags != CU_EVENT_RECORD_EXTERNAL || graph == nullptr ||
      reinterpret_cast<EventHandle*>(event)->device != DeviceOf(stream)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  graph->AddRecord(*Of(stream), Of(event));
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
  if (Of(event)->capture != nullptr) {
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  {
    const std::lock_guard lock(Executor::Get().mutex());
    if (Of(event)->reached < Of(event)->recorded) {
      return CUDA_ERROR_NOT_READY;
    }
  }
  return Health();
}
CUresult cuEventElapsedTime(float* elapsed_ms, CUevent from, CUevent to) {
  const std::lock_guard lock(Executor::Get().mutex());
  if (Of(from)->reached < Of(from)->recorded || Of(to)->reached < Of(to)->recorded) {
    return CUDA_ERROR_NOT_READY;
  }
  *elapsed_ms = static_cast<float>(Of(to)->time_ms - Of(from)->time_ms);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  if (tandem::shim::KernelParamsBytes(name) == 0) {
    return CUDA_ERROR_NOT_FOUND;
  }
  static auto* names = new std::map<std::string, std::string>;
  // Some kernels have code of their own for the oldest architecture.
  const std::string oldest = std::string(name) + "@sm75";
  const bool is_oldest = Capability() == 75 && tandem::shim::KernelParamsBytes(oldest.c_str()) > 0;
  const std::lock_guard lock(GetMemory().mutex);
  const std::string& kept = names->try_emplace(name, is_oldest ? oldest : name).first->second;
  *function = reinterpret_cast<CUfunction>(const_cast<char*>(kept.c_str()));
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** params, void** extra) {
  const char* name = reinterpret_cast<const char*>(function);
  if (extra != nullptr || grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 ||
      grid_z > 65535 || block_x * block_y * block_z > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++Counts().kernels;
  const auto* bytes = static_cast<const std::byte*>(params[0]);
  std::vector<std::byte> copy(bytes, bytes + tandem::shim::KernelParamsBytes(name));
  return Queue(stream, [=, copy = std::move(copy)] {
    const uint32_t grid[3] = {grid_x, grid_y, grid_z};
    const uint32_t block[3] = {block_x, block_y, block_z};
    tandem::shim::RunKernel(name, grid, block, shared_bytes, copy.data());
  });
}

}  // extern "C"
