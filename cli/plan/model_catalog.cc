#include "cli/plan/model_catalog.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/model_files/hf_config.h"
#include "common/model_files/model_files.h"
#include "common/model_shape/known_shapes.h"

namespace tandem::cli {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 22;

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<NamedShape> ReadConfig(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, base::ReadFileTail(path, 0, kMaxConfigBytes + 1));
  model_files::OpenOptions options;
  options.dummy_weights = true;
  model_files::ModelParts parts;
  TANDEM_RETURN_IF_ERROR(model_files::ReadHfConfig(text, path, options, &parts));
  TANDEM_RETURN_IF_ERROR(ValidateModelShape(parts.shape));
  return NamedShape{path, parts.shape};
}

}  // namespace

absl::StatusOr<NamedShape> FindModelShape(const std::string& model) {
  for (const NamedShape& known :
       {NamedShape{"llama-2-7b", Llama2Of7B()}, NamedShape{"llama-3.1-8b", Llama31Of8B()},
        NamedShape{"llama-3.1-70b", Llama31Of70B()}}) {
    if (known.name == model) {
      return known;
    }
  }
  if (absl::EndsWith(model, ".json")) {
    return ReadConfig(model);
  }
  if (absl::EndsWith(model, ".gguf")) {
    TANDEM_ASSIGN_OR_RETURN(const auto files, model_files::OpenModel(model));
    return NamedShape{files->name(), files->shape()};
  }
  if (IsFolder(model)) {
    return ReadConfig(absl::StrCat(model, "/config.json"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", model,
                   "' is unknown; allowed: llama-2-7b, llama-3.1-8b, llama-3.1-70b, a config.json, "
                   "a folder with one, a .gguf file"));
}

}  // namespace tandem::cli
