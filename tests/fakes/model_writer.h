#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/model_shape/model_shape.h"

// Writes small model files for tests: Hugging Face folders and GGUF files with seeded random
// weights. Written from the formats' specifications, apart from the readers.
namespace tandem::fakes {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> dims;  // outermost first
  std::vector<float> values;  // exact in bfloat16 and float16
};

enum class FileNaming { kHuggingFace, kGguf };

// Every tensor of a model of this shape in its logical row order (q and k in two halves), phi3's
// fused.
std::vector<NamedTensor> ModelTensors(const ModelShape& shape, FileNaming naming, uint64_t seed);

// Reorders a matrix [heads * head_dim, cols] or a vector [heads * head_dim] as llama GGUFs hold q
// and k.
void PermuteHeads(NamedTensor* tensor, int64_t heads);

// A small shape that every reader accepts.
ModelShape TinyShape(ModelFamily family);

// Text of a config.json for `shape`, classic form, with `extra` put in before its end
// (",\"key\": 1").
std::string ConfigJson(const ModelShape& shape, const std::string& extra = "");

std::string EncodeF32(const std::vector<float>& values);
std::string EncodeBF16(const std::vector<float>& values);
std::string EncodeF16(const std::vector<float>& values);  // normal numbers and zero

// The bytes of a safetensors file; `dtype` is F32, BF16 or F16. `padding` spaces at the end of the
// header shift the data (and so its alignment).
std::string SafetensorsBytes(const std::vector<NamedTensor>& tensors, const std::string& dtype,
                             int padding = 0);
// A file of this header text and data.
std::string SafetensorsOf(const std::string& header, const std::string& data);

// Collects metadata and tensors and lays out a GGUF file.
class GgufWriter {
 public:
  GgufWriter& UInt32(const std::string& key, uint32_t value);
  GgufWriter& Float32(const std::string& key, float value);
  GgufWriter& Bool(const std::string& key, bool value);
  GgufWriter& String(const std::string& key, const std::string& value);
  GgufWriter& Strings(const std::string& key, const std::vector<std::string>& values);
  GgufWriter& Floats(const std::string& key, const std::vector<float>& values);
  GgufWriter& Ints(const std::string& key, const std::vector<int32_t>& values);
  // A value of any type, as bytes.
  GgufWriter& Raw(const std::string& key, uint32_t type, const std::string& bytes);
  // `type` is the format's number; dims are outermost first.
  GgufWriter& Tensor(const std::string& name, std::vector<int64_t> dims, uint32_t type,
                     const std::string& bytes);
  GgufWriter& Tensors(const std::vector<NamedTensor>& tensors);  // as F32
  // The shape's metadata under the architecture's prefix, general.architecture and a vocabulary.
  GgufWriter& Model(const ModelShape& shape, const std::string& architecture);

  uint32_t version = 3;
  uint64_t alignment = 32;  // of the layout; the metadata key is the caller's

  std::string Finish() const;

 private:
  struct Entry {
    std::string name;
    std::vector<int64_t> dims;
    uint32_t type;
    std::string bytes;
  };
  std::vector<std::string> values_;
  std::vector<Entry> tensors_;
};

// A file or folder below the test's temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const;

 private:
  std::string path_;
};

}  // namespace tandem::fakes
