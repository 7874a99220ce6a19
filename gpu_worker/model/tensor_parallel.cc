#include "gpu_worker/model/tensor_parallel.h"

#include "absl/strings/str_cat.h"

namespace tandem::gpu_worker::model {
namespace {

// So that a rank's rows of matrices begin where vector instructions and tensor cores want them.
constexpr int32_t kColumnMultiple = 16;

}  // namespace

absl::Status CheckTensorParallel(const ModelShape& shape, int32_t size) {
  const struct {
    const char* field;
    int32_t value;
    int32_t multiple;  // of which each device gets the same number
  } fields[] = {
      {"num_attention_heads", shape.num_q_heads, 1},
      {"num_key_value_heads", shape.num_kv_heads, 1},
      {"intermediate_size", shape.intermediate_size, kColumnMultiple},
      {"vocab_size", shape.vocab_size, 1},
  };
  if (size < 1 || size > kMaxTensorParallel) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor-parallel-size: ", size, "; allowed: 1 to ", kMaxTensorParallel));
  }
  if (size == 1) {
    return absl::OkStatus();
  }
  for (const auto& field : fields) {
    if (field.value % (size * field.multiple) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tensor-parallel-size: ", size, " GPUs cannot share out the model's ", field.field,
          " of ", field.value, "; allowed: sizes that divide it",
          field.multiple > 1 ? absl::StrCat(" into multiples of ", field.multiple) : ""));
    }
  }
  return absl::OkStatus();
}

ModelShape RankShape(const ModelShape& shape, int32_t size) {
  ModelShape rank = shape;
  rank.num_q_heads /= size;
  rank.num_kv_heads /= size;
  rank.intermediate_size /= size;
  return rank;
}

}  // namespace tandem::gpu_worker::model
