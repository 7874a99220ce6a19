#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace tandem::gpu_worker {

// The files of profiles/, put into the binary by the build.
struct BuiltInProfile {
  std::string_view name;
  std::string_view yaml;
};

std::span<const BuiltInProfile> BuiltInProfiles();  // by name
std::optional<std::string_view> BuiltInProfileText(std::string_view name);

}  // namespace tandem::gpu_worker
