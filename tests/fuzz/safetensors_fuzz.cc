// A safetensors file of any bytes is read or refused, and so is a config.json.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/model_files/hf_config.h"
#include "common/model_files/safetensors_reader.h"

using namespace tandem::model_files;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A heap copy of exactly this size: address sanitizer sees a byte read past it.
  const auto copy = std::make_unique<std::byte[]>(size);
  std::copy_n(reinterpret_cast<const std::byte*>(data), size, copy.get());
  if (const auto tensors = ParseSafetensors({copy.get(), size}, "fuzz.safetensors"); tensors.ok()) {
    std::byte last{};
    for (const auto& [name, tensor] : *tensors) {
      last ^= tensor.data[tensor.bytes - 1] ^ tensor.data[0];
    }
    volatile std::byte used = last;
    (void)used;
  }
  const absl::string_view text(reinterpret_cast<const char*>(copy.get()), size);
  ModelParts parts;
  if (ReadHfConfig(text, "config.json", {}, &parts).ok()) {
    (void)ReadGenerationConfig(text, "generation_config.json", &parts);
  }
  return 0;
}
