#include "gpu_worker/service/memory_info.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

// Files of /proc and /sys have no size: read to the end.
std::string ReadAll(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<uint64_t> Field(std::string_view meminfo, std::string_view name) {
  const size_t at = meminfo.find(name);
  if (at == std::string_view::npos) {
    return absl::InternalError(base::StrCat("/proc/meminfo: no ", name));
  }
  std::string_view rest = meminfo.substr(at + name.size());
  rest = rest.substr(0, rest.find("kB"));
  uint64_t kib = 0;
  if (!absl::SimpleAtoi(base::AbslView(rest), &kib)) {
    return absl::InternalError(base::StrCat("/proc/meminfo: bad ", name));
  }
  return kib * 1024;
}

}  // namespace

absl::StatusOr<MemoryInfo> ParseMemoryInfo(std::string_view meminfo, std::string_view limit,
                                           std::string_view used) {
  MemoryInfo info;
  TANDEM_ASSIGN_OR_RETURN(info.total_bytes, Field(meminfo, "MemTotal:"));
  TANDEM_ASSIGN_OR_RETURN(info.available_bytes, Field(meminfo, "MemAvailable:"));
  uint64_t limit_bytes = 0;
  if (absl::SimpleAtoi(base::AbslView(limit), &limit_bytes) && limit_bytes < info.total_bytes) {
    uint64_t used_bytes = 0;
    if (!absl::SimpleAtoi(base::AbslView(used), &used_bytes)) {
      used_bytes = 0;
    }
    info.total_bytes = limit_bytes;
    info.available_bytes =
        std::min(info.available_bytes, limit_bytes - std::min(limit_bytes, used_bytes));
  }
  return info;
}

absl::StatusOr<MemoryInfo> ReadMemoryInfo() {
  return ParseMemoryInfo(ReadAll("/proc/meminfo"), ReadAll("/sys/fs/cgroup/memory.max"),
                         ReadAll("/sys/fs/cgroup/memory.current"));
}

}  // namespace tandem::gpu_worker
