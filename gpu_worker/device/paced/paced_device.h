#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "gpu_worker/cost_model/device_profile.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/paced/paced_stream.h"

namespace tandem::gpu_worker::device {

// An emulated GPU: it has the profile's memory, of which nothing but address space is taken, and
// streams on which operations take the time that they are charged. Its memory holds no values.
class PacedDevice : public Device {
 public:
  // The clock outlives the device.
  PacedDevice(const DeviceProfile& profile, PaceClock* clock);

  DeviceKind kind() const override { return DeviceKind::kPaced; }
  std::string_view name() const override { return name_; }
  MemoryInfo memory() const override;
  bool has_copy_engine() const override { return true; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, const char* what) override;
  std::unique_ptr<Stream> CreateComputeStream() override;
  std::unique_ptr<Stream> CreateTransferStream() override;
  std::unique_ptr<Event> CreateEvent() override;

  const DeviceProfile& profile() const { return profile_; }

 private:
  const DeviceProfile profile_;
  const std::string name_;
  PacedTimeline timeline_;
  std::atomic<uint64_t> used_bytes_{0};
};

}  // namespace tandem::gpu_worker::device
