#include "gpu_worker/service/cost_key.h"

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

// Raised when kernels or what a term means change, so that older measurements are not used.
constexpr int kCostVersion = 3;

// The processor's name, and the first line of its features, which virtual machines differ in.
std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string name;
  for (std::string line; std::getline(file, line);) {
    const bool is_name = line.starts_with("model name") || line.starts_with("CPU part");
    if (is_name && line.find(':') != std::string::npos) {
      return line.substr(line.find(':') + 1);
    }
  }
  return name;
}

int CoresAllowed() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

std::string CostKey(const model_files::ModelFiles& model, const PipelineOptions& pipeline,
                    const std::string& device_name) {
  const ModelShape& shape = model.shape();
  return base::StrCat(
      "version ", kCostVersion, " ", base::Version(), "; model ", model.name(), " ",
      shape.num_layers, "x", shape.hidden_size, "x", shape.intermediate_size, " heads ",
      shape.num_q_heads, "/", shape.num_kv_heads, "x", shape.head_dim, " vocabulary ",
      shape.vocab_size, "; compute ", DTypeName(pipeline.compute_dtype), "; CPU pool ",
      DTypeName(pipeline.cpu_kv_dtype), "; blocks ", pipeline.block_tokens, "; rows ",
      pipeline.max_num_batched_tokens, " of ", pipeline.max_num_seqs, "; device ", device_name,
      " threads ", pipeline.matmul_threads, "; CPU", Processor(), " cores ", CoresAllowed(),
      pipeline.tensor_parallel_size > 1
          ? base::StrCat("; tensor parallel ", pipeline.tensor_parallel_size)
          : "");
}

std::string CostFolder(const std::string& flag) {
  if (flag == "off") {
    return "";
  }
  std::string folder = flag;
  if (flag == "auto") {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache != nullptr && *cache != '\0') {
      folder = base::StrCat(cache, "/tandem");
    } else if (home != nullptr && *home != '\0') {
      folder = base::StrCat(home, "/.cache/tandem");
    } else {
      return "";
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    base::LogWarning("measured costs are not kept",
                     {{"folder", folder}, {"error", error.message()}});
    return "";
  }
  return folder;
}

}  // namespace tandem::gpu_worker
