#include "tests/gpu_worker/pipeline/golden_cases.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace tandem::gpu_worker {

std::string TestDevice() {
  const char* device = std::getenv("TANDEM_TEST_DEVICE");
  return device != nullptr ? device : "host";
}

int32_t TestTensorParallel() {
  const char* size = std::getenv("TANDEM_TEST_TENSOR_PARALLEL");
  return size != nullptr ? std::atoi(size) : 1;
}

std::string GoldenFolder(const std::string& model) {
  return std::string(TANDEM_TEST_DATA) + "/goldens/" + model;
}

std::vector<GoldenCase> LoadGoldenCases(const std::string& model) {
  std::ifstream file(GoldenFolder(model) + "/goldens.json");
  TANDEM_CHECK(file.good());
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<GoldenCase> cases;
  for (const nlohmann::json& from : json.at("cases")) {
    GoldenCase& to = cases.emplace_back();
    to.name = from.at("name");
    to.prompt = from.at("prompt_token_ids").get<std::vector<int32_t>>();
    to.tokens = from.at("token_ids").get<std::vector<int32_t>>();
    to.logprobs = from.at("logprobs").get<std::vector<double>>();
    to.margins = from.at("margins").get<std::vector<double>>();
    to.top_ids = from.at("top5_ids").get<std::vector<std::vector<int32_t>>>();
    to.top_logprobs = from.at("top5_logprobs").get<std::vector<std::vector<double>>>();
    if (from.contains("prompt_logprobs") && !from.at("prompt_logprobs").is_null()) {
      for (const nlohmann::json& value : from.at("prompt_logprobs")) {
        if (!value.is_null()) {
          to.prompt_logprobs.push_back(value.get<double>());
        }
      }
    }
  }
  return cases;
}

}  // namespace tandem::gpu_worker
