// A GGUF file of any bytes is read or refused; what is read stays inside the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model_files/gguf_model.h"
#include "common/model_files/gguf_reader.h"

namespace {

using namespace tandem::model_files;

void ReadAllWeights(const ModelParts& parts) {
  std::vector<float> row;
  for (int role = 0; role <= static_cast<int>(WeightRole::kDown); ++role) {
    for (int32_t layer = 0; layer < parts.shape.num_layers; ++layer) {
      const auto view = parts.weights.Find(static_cast<WeightRole>(role), layer);
      if (!view) {
        continue;
      }
      row.resize(static_cast<size_t>(view->cols));
      for (int64_t i = 0; i < view->rows; ++i) {
        ReadRows(*view, i, 1, row.data());
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A heap copy of exactly this size: address sanitizer sees a byte read past it.
  const auto copy = std::make_unique<std::byte[]>(size);
  std::copy_n(reinterpret_cast<const std::byte*>(data), size, copy.get());
  const std::span<const std::byte> bytes(copy.get(), size);
  if (const auto gguf = GgufFile::Parse(bytes, "fuzz.gguf"); gguf.ok()) {
    for (const char* key : {"list", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "number"}) {
      (void)gguf->Strings(key);
      (void)gguf->Floats(key);
      (void)gguf->Ints(key);
      (void)gguf->Number(key);
    }
  }
  if (const auto parts = ReadGgufModel(bytes, "fuzz.gguf", {}); parts.ok()) {
    ReadAllWeights(*parts);
  }
  return 0;
}
