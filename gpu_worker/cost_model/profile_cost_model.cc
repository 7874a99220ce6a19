#include "gpu_worker/cost_model/profile_cost_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::gpu_worker {
namespace {

// Kernels of a layer's dense part: norm, QKV, rotation, store of K and V; output projection, norm,
// gate and up, activation, down.
constexpr int kDenseKernelsPerLayer = 9;
// Passes over a row's elements that are read or written: norm or rotation (in and out), activation
// (two in, one out), sampling (logits once more in and out).
constexpr double kInAndOut = 2;
constexpr double kActivationPasses = 3;
constexpr int64_t kTableRows = 4096;
// int8 KV has a scale of four bytes per token and head, for K and for V.
constexpr double kScaleBytes = 4;

double LayerWeights(const ModelShape& shape) {
  const double hidden = shape.hidden_size;
  const double qkv = static_cast<double>(shape.q_size() + 2 * shape.kv_size());
  return hidden * qkv + static_cast<double>(shape.q_size()) * hidden +
         3.0 * hidden * shape.intermediate_size;
}

class ProfileCostModel : public CostModel {
 public:
  ProfileCostModel(DeviceProfile profile, const ModelShape& shape,
                   const ProfileCostOptions& options)
      : profile_(std::move(profile)),
        shape_(shape),
        options_(options),
        gpus_(options.tensor_parallel),
        element_bytes_(DTypeBytes(options.compute_dtype)) {
    kv_bytes_ = KvBytesPerToken(shape, options.compute_dtype) / shape.num_layers;
    cpu_kv_bytes_ = KvBytesPerToken(shape, options.cpu_kv_dtype) / shape.num_layers;
    attention_flops_ = 4.0 * static_cast<double>(shape.q_size());
    cpu_bytes_per_us_ = options.cpu_attention_bytes_per_us > 0
                            ? options.cpu_attention_bytes_per_us
                            : CpuAttentionBytesPerUs(profile_, attention_flops_ / cpu_kv_bytes_);
    q_size_ = shape.q_size() / gpus_;
    kv_size_ = shape.kv_size() / gpus_;
    intermediate_ = shape.intermediate_size / gpus_;
    for (int64_t rows = 0; rows < kTableRows; ++rows) {
      linear_us_.push_back(ComputeLinearUs(rows));
    }
  }

  int32_t num_layers() const override { return shape_.num_layers; }

  double LinearUs(int64_t rows) const override {
    const auto row = static_cast<size_t>(std::max<int64_t>(rows, 0));
    return row < linear_us_.size() ? linear_us_[row] : ComputeLinearUs(rows);
  }

  double PrefillUs(int64_t chunk, int64_t context) const override {
    const auto tokens = static_cast<double>(chunk);
    const double pairs = tokens * (static_cast<double>(context) + (tokens + 1) / 2);
    const double bytes = (static_cast<double>(context) + tokens) * kv_bytes_;
    return PrefillAttentionUs(profile_, pairs * attention_flops_ / gpus_, bytes / gpus_,
                              options_.compute_dtype);
  }

  double GpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    return sequences <= 0 ? 0
                          : DecodeAttentionUs(
                                profile_, static_cast<double>(context_tokens) * kv_bytes_ / gpus_);
  }

  double CpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    return sequences <= 0 ? 0
                          : profile_.host_exchange_us + static_cast<double>(context_tokens) *
                                                            cpu_kv_bytes_ / cpu_bytes_per_us_;
  }

  // Q, K and V go one way, O comes back the other; each GPU has a link of its own.
  double TransferUs(int64_t rows) const override {
    const double bytes = static_cast<double>(rows) * element_bytes_;
    return LinkUs(profile_, bytes * static_cast<double>(q_size_ + 2 * kv_size_)) +
           LinkUs(profile_, bytes * static_cast<double>(q_size_));
  }

  // In the CPU pool's type: converted on the GPU.
  double CopyUs(int64_t tokens) const override {
    return LinkUs(profile_, static_cast<double>(tokens) * cpu_kv_bytes_ / gpus_);
  }

  double LaunchUs() const override { return 0; }  // in the operations
  double overlap() const override { return 1; }

 private:
  double Matmul(int64_t rows, int64_t in, int64_t out) const {
    return MatmulUs(profile_, {rows, in, out, options_.compute_dtype});
  }
  double Pass(double passes, int64_t rows, int64_t width) const {
    return ElementwiseUs(
        profile_, passes * static_cast<double>(rows) * static_cast<double>(width) * element_bytes_);
  }
  double Reduce(int64_t rows) const {
    return AllReduceUs(profile_, static_cast<double>(rows) * shape_.hidden_size * element_bytes_,
                       gpus_);
  }

  double ComputeLinearUs(int64_t rows) const {
    if (rows <= 0) {
      return 0;
    }
    const double work_us = PreUs(rows) + PostUs(rows) + HeadUs(rows) / shape_.num_layers;
    // Launches by themselves run ahead of longer kernels and hold up shorter ones.
    return options_.graphs
               ? work_us
               : std::max(work_us, kDenseKernelsPerLayer * profile_.gpu_eager_launch_us);
  }
  // Norm, QKV, rotation, store of K and V.
  double PreUs(int64_t rows) const {
    const int64_t qkv = q_size_ + 2 * kv_size_;
    return Pass(kInAndOut, rows, shape_.hidden_size) + Matmul(rows, shape_.hidden_size, qkv) +
           Pass(kInAndOut, rows, qkv) + Pass(kInAndOut, rows, 2 * kv_size_);
  }
  // Output projection, norm, MLP.
  double PostUs(int64_t rows) const {
    return Matmul(rows, q_size_, shape_.hidden_size) + Pass(kInAndOut, rows, shape_.hidden_size) +
           Matmul(rows, shape_.hidden_size, 2 * intermediate_) +
           Pass(kActivationPasses, rows, intermediate_) +
           Matmul(rows, intermediate_, shape_.hidden_size) + 2 * Reduce(rows);
  }
  // Embedding, last norm, logits and sampling. How many rows are sampled the interface does not
  // say; a prefill's are not, but for its last one.
  double HeadUs(int64_t rows) const {
    const int64_t sampled = std::min(rows, options_.max_sampled_rows);
    const int64_t vocab = shape_.vocab_size / gpus_;
    return Pass(kInAndOut, rows, shape_.hidden_size) +
           Pass(kInAndOut, sampled, shape_.hidden_size) +
           Matmul(sampled, shape_.hidden_size, vocab) + Pass(kInAndOut, sampled, vocab);
  }

  const DeviceProfile profile_;
  const ModelShape shape_;
  const ProfileCostOptions options_;
  const int32_t gpus_;
  const double element_bytes_;
  double kv_bytes_ = 0;  // of a token in a layer
  double cpu_kv_bytes_ = 0;
  double attention_flops_ = 0;  // of a query and key pair in a layer
  double cpu_bytes_per_us_ = 0;
  int64_t q_size_ = 0;  // of one GPU
  int64_t kv_size_ = 0;
  int64_t intermediate_ = 0;
  std::vector<double> linear_us_;  // by rows: a planner asks some hundred times a step
};

}  // namespace

double WeightBytes(const ModelShape& shape, DType dtype) {
  const double embeddings = double{1} * shape.vocab_size * shape.hidden_size;
  return DTypeBytes(dtype) *
         (shape.num_layers * LayerWeights(shape) + (shape.tied_embeddings ? 1 : 2) * embeddings);
}

double KvBytesPerToken(const ModelShape& shape, DType dtype) {
  const double head_bytes =
      double{1} * shape.head_dim * DTypeBytes(dtype) + (dtype == DType::kInt8 ? kScaleBytes : 0);
  return 2.0 * shape.num_layers * shape.num_kv_heads * head_bytes;
}

absl::StatusOr<std::unique_ptr<CostModel>> MakeProfileCostModel(const DeviceProfile& profile,
                                                                const ModelShape& shape,
                                                                const ProfileCostOptions& options) {
  if (absl::Status status = ValidateModelShape(shape); !status.ok()) {
    return status;
  }
  if (PeakFlopsPerUs(profile, options.compute_dtype) <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("gpu.tflops.", DTypeName(options.compute_dtype),
                                                   " of profile ", profile.name,
                                                   " is 0: the GPU lacks the type"));
  }
  const int32_t gpus = options.tensor_parallel;
  if (gpus < 1 || shape.num_q_heads % gpus != 0 || shape.num_kv_heads % gpus != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel is ", gpus, "; allowed: divisors of the model's ",
                     shape.num_q_heads, " query and ", shape.num_kv_heads, " KV heads"));
  }
  return std::make_unique<ProfileCostModel>(profile, shape, options);
}

}  // namespace tandem::gpu_worker
