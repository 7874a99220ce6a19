#include "gpu_worker/device/paced/paced_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/shm/region.h"

namespace tandem::gpu_worker::device {
namespace {

// Address space: a page that somebody touches all the same costs memory and nothing else.
class PacedBuffer : public Buffer {
 public:
  PacedBuffer(shm::AddressSpace space, size_t bytes, std::atomic<uint64_t>* used)
      : space_(std::move(space)), bytes_(bytes), used_(used) {}
  ~PacedBuffer() override { used_->fetch_sub(bytes_); }
  std::byte* data() const override { return space_.data(); }
  size_t bytes() const override { return bytes_; }

 private:
  shm::AddressSpace space_;
  size_t bytes_;
  std::atomic<uint64_t>* used_;
};

}  // namespace

PacedDevice::PacedDevice(const DeviceProfile& profile, PaceClock* clock)
    : profile_(profile), name_(absl::StrCat("paced:", profile.name)), timeline_(clock) {}

MemoryInfo PacedDevice::memory() const {
  MemoryInfo info;
  info.total_bytes = static_cast<uint64_t>(profile_.gpu_memory_gb * 1e9);
  info.free_bytes = info.total_bytes - std::min(info.total_bytes, used_bytes_.load());
  return info;
}

absl::StatusOr<std::unique_ptr<Buffer>> PacedDevice::Allocate(size_t bytes, const char* what) {
  const auto total = static_cast<uint64_t>(profile_.gpu_memory_gb * 1e9);
  const uint64_t before = used_bytes_.fetch_add(bytes);
  if (before > total || bytes > total - before) {
    used_bytes_.fetch_sub(bytes);
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", bytes, " bytes do not fit; ",
                                                     name_, " has ", total, " bytes, ",
                                                     total - before, " of them free"));
  }
  absl::StatusOr<shm::AddressSpace> space = shm::AddressSpace::Reserve(std::max(bytes, size_t{1}));
  if (!space.ok()) {
    used_bytes_.fetch_sub(bytes);
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", space.status().message()));
  }
  return std::make_unique<PacedBuffer>(*std::move(space), bytes, &used_bytes_);
}

std::unique_ptr<Stream> PacedDevice::CreateComputeStream() {
  return std::make_unique<PacedStream>(&timeline_, "paced-compute");
}

std::unique_ptr<Stream> PacedDevice::CreateTransferStream() {
  return std::make_unique<PacedStream>(&timeline_, "paced-link");
}

std::unique_ptr<Event> PacedDevice::CreateEvent() {
  return std::make_unique<PacedEvent>(&timeline_);
}

}  // namespace tandem::gpu_worker::device
