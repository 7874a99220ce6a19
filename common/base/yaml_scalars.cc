#include "common/base/yaml_scalars.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::base {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 8;
constexpr size_t kMaxScalars = 4096;

absl::Status Fault(const YAML::Node& node, const std::string& path, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", node.Mark().line + 1, ": ", path, ": ", what));
}

absl::Status Collect(const YAML::Node& map, const std::string& prefix, int depth,
                     std::vector<YamlScalar>* scalars) {
  if (depth > kMaxDepth) {
    return Fault(map, prefix, "too many levels");
  }
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) {
      return Fault(entry.first, prefix, "a key that is no plain text");
    }
    const std::string& key = entry.first.Scalar();
    const std::string path = prefix.empty() ? key : absl::StrCat(prefix, ".", key);
    if (entry.second.IsMap()) {
      TANDEM_RETURN_IF_ERROR(Collect(entry.second, path, depth + 1, scalars));
      continue;
    }
    if (!entry.second.IsScalar()) {
      return Fault(entry.first, path, "needs a plain value or a map");
    }
    const auto same = [&path](const YamlScalar& scalar) { return scalar.path == path; };
    if (std::any_of(scalars->begin(), scalars->end(), same)) {
      return Fault(entry.first, path, "given twice");
    }
    if (scalars->size() >= kMaxScalars) {
      return Fault(entry.first, path, "too many values");
    }
    scalars->push_back({path, entry.second.Scalar(), entry.second.Mark().line + 1});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<YamlScalar>> ReadYamlScalars(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError("the text is longer than 1 MiB");
  }
  std::vector<YamlScalar> scalars;
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsMap()) {
      return absl::InvalidArgumentError("not a map of names and values");
    }
    TANDEM_RETURN_IF_ERROR(Collect(root, "", 1, &scalars));
  } catch (const std::exception& error) {  // yaml-cpp reports by exceptions
    return absl::InvalidArgumentError(error.what());
  }
  return scalars;
}

}  // namespace tandem::base
