#include "cli/serve/endpoint_monitor.h"

#include <unistd.h>

#include "common/base/files.h"

namespace tandem::cli {
namespace {

constexpr int64_t kProbeTimeoutUs = 5'000'000;
constexpr int64_t kReadyPauseUs = 20'000;
constexpr int64_t kHealthPauseUs = 2'000'000;

}  // namespace

void EndpointMonitor::Reset() {
  unlink(options_.port_file.c_str());
  next_probe_us_ = 0;
  last_healthy_us_ = 0;
  probe_.Drop();
}

bool EndpointMonitor::Ready(int64_t now_us) {
  auto ports = base::ReadPortFile(options_.port_file, options_.num_ports);
  if (!ports.ok()) {
    return false;
  }
  ports_ = *std::move(ports);
  if (!options_.wait_until_ready) {
    return true;
  }
  if (!probe_.running()) {
    if (now_us >= next_probe_us_) {
      probe_.Start(options_.host, ports_[options_.metrics_index], "/ready",
                   now_us + kProbeTimeoutUs);
      next_probe_us_ = now_us + kReadyPauseUs;
    }
    return false;
  }
  return probe_.Poll(now_us) == HttpProbe::Outcome::kOk;
}

bool EndpointMonitor::Hangs(int64_t now_us) {
  if (last_healthy_us_ == 0) {
    last_healthy_us_ = now_us;
  }
  if (probe_.running()) {
    if (probe_.Poll(now_us) == HttpProbe::Outcome::kOk) {
      last_healthy_us_ = now_us;
    }
  } else if (now_us >= next_probe_us_) {
    probe_.Start(options_.host, ports_[options_.metrics_index], "/health",
                 now_us + kProbeTimeoutUs);
    next_probe_us_ = now_us + kHealthPauseUs;
  }
  return now_us - last_healthy_us_ > options_.hang_limit_us;
}

int EndpointMonitor::port(size_t index, int64_t fallback) const {
  return index < ports_.size() ? ports_[index] : static_cast<int>(fallback);
}

}  // namespace tandem::cli
