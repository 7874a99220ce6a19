#include "gpu_worker/model/weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::model {
namespace {

using model_files::ModelFiles;
using model_files::WeightRole;
using model_files::WeightView;

// Reading a model from a cold disk may take long; nothing else waits for it.
constexpr int64_t kLogEveryUs = 2'000'000;
constexpr int64_t kLoadTimeoutUs = int64_t{3600} * 1'000'000;

struct Part {
  WeightRole role;
  const char* name;
  int64_t rows;
};

// Rows [first, first + rows) of a matrix.
struct RowWindow {
  WeightView view;
  int64_t first = 0;
  int64_t rows = 0;
};

// Finds and checks the weights of one layer (or those outside of the layers).
class Reader {
 public:
  Reader(const ModelFiles& files, int32_t layer) : files_(files), layer_(layer) {}

  absl::StatusOr<WeightView> Matrix(const Part& part, int64_t cols) const {
    const std::optional<WeightView> view = files_.Find(part.role, layer_);
    if (!view.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files_.name(), ": layer ", layer_, " has no ", part.name));
    }
    if (view->rows != part.rows || view->cols != cols) {
      return absl::InvalidArgumentError(absl::StrCat(
          files_.name(), ": layer ", layer_, ": ", part.name, " is [", view->rows, ", ", view->cols,
          "]; the model's shape asks for [", part.rows, ", ", cols, "]"));
    }
    return *view;
  }

  absl::Status Vector(const Part& part, std::vector<float>* out) const {
    TANDEM_ASSIGN_OR_RETURN(const WeightView view, Matrix({part.role, part.name, 1}, part.rows));
    const size_t first = out->size();
    out->resize(first + static_cast<size_t>(part.rows));
    model_files::ReadRows(view, 0, 1, out->data() + first);
    return absl::OkStatus();
  }

 private:
  const ModelFiles& files_;
  int32_t layer_;
};

// Rows of several matrices, one below the other.
ops::RowReader Stacked(std::vector<RowWindow> windows) {
  return [windows = std::move(windows)](int64_t first, int64_t count, float* out) {
    for (const RowWindow& window : windows) {
      const int64_t here = std::min(count, window.rows - first);
      if (here > 0) {
        model_files::ReadRows(window.view, window.first + first, here, out);
        out += here * window.view.cols;
        count -= here;
        first += here;
      }
      first -= window.rows;
      if (count == 0) {
        return;
      }
    }
  };
}

// Columns [first_column, first_column + width) of a matrix.
ops::RowReader Columns(const WeightView& view, int64_t first_column, int64_t width) {
  return [view, first_column, width](int64_t first, int64_t count, float* out) {
    std::vector<float> rows(static_cast<size_t>(count * view.cols));
    model_files::ReadRows(view, first, count, rows.data());
    for (int64_t row = 0; row < count; ++row) {
      std::copy_n(rows.data() + row * view.cols + first_column, width, out + row * width);
    }
  };
}

class Loader {
 public:
  Loader(ops::OpContext& context, const ModelFiles& files, const TensorParallel& parallel,
         const LoadProgress& progress)
      : context_(context),
        files_(files),
        shape_(files.shape()),
        parallel_(parallel),
        progress_(progress) {}

  absl::StatusOr<Weights> Load() {
    const absl::Status queued = QueueAll();
    // Packing that is queued reads the files: wait for it on errors too.
    const absl::Status packed = context_.stream().Synchronize(kLoadTimeoutUs);
    TANDEM_RETURN_IF_ERROR(queued);
    TANDEM_RETURN_IF_ERROR(packed);
    ops::EndLoading(context_);
    return std::move(weights_);
  }

 private:
  absl::Status QueueAll() {
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      TANDEM_RETURN_IF_ERROR(QueueLayer(layer));
      ReportProgress(layer + 1);
    }
    const Reader reader(files_, 0);
    TANDEM_RETURN_IF_ERROR(Norm(reader,
                                {WeightRole::kOutputNorm, "output norm", shape_.hidden_size},
                                &weights_.output_norm));
    TANDEM_RETURN_IF_ERROR(Pack(reader, {{WeightRole::kOutput, "output", shape_.vocab_size}},
                                shape_.hidden_size, {}, &weights_.output));
    const bool has_output_whole = parallel_.size == 1;
    return shape_.tied_embeddings && has_output_whole ? absl::OkStatus() : QueueEmbedding(reader);
  }

  // Where queueing takes as long as reading (a device with memory of its own).
  void ReportProgress(int32_t layers) {
    if (progress_ != nullptr) {
      progress_(static_cast<double>(layers) / shape_.num_layers);
    }
    const int64_t now_us = base::SystemClock().NowUs();
    if (now_us - last_log_us_ > kLogEveryUs) {
      last_log_us_ = now_us;
      base::LogInfo(
          "loading weights",
          {{"layers", layers}, {"of", shape_.num_layers}, {"bytes", weights_.matrix_bytes}});
    }
  }

  absl::Status QueueLayer(int32_t layer) {
    const Reader reader(files_, layer);
    LayerWeights& to = weights_.layers.emplace_back();
    const int64_t hidden = shape_.hidden_size;
    TANDEM_RETURN_IF_ERROR(
        Norm(reader, {WeightRole::kAttentionNorm, "attention norm", hidden}, &to.attention_norm));
    TANDEM_RETURN_IF_ERROR(Norm(reader, {WeightRole::kMlpNorm, "MLP norm", hidden}, &to.mlp_norm));
    std::vector<float> bias;
    if (shape_.qkv_bias) {
      for (const Part& part : {Part{WeightRole::kQBias, "q bias", shape_.q_size()},
                               Part{WeightRole::kKBias, "k bias", shape_.kv_size()},
                               Part{WeightRole::kVBias, "v bias", shape_.kv_size()}}) {
        TANDEM_RETURN_IF_ERROR(RankVector(reader, part, &bias));
      }
    }
    if (shape_.qk_norm) {
      TANDEM_RETURN_IF_ERROR(
          Norm(reader, {WeightRole::kQNorm, "q norm", shape_.head_dim}, &to.q_norm));
      TANDEM_RETURN_IF_ERROR(
          Norm(reader, {WeightRole::kKNorm, "k norm", shape_.head_dim}, &to.k_norm));
    }
    TANDEM_RETURN_IF_ERROR(Pack(reader,
                                {{WeightRole::kQ, "q", shape_.q_size()},
                                 {WeightRole::kK, "k", shape_.kv_size()},
                                 {WeightRole::kV, "v", shape_.kv_size()}},
                                hidden, std::move(bias), &to.qkv));
    TANDEM_RETURN_IF_ERROR(PackColumns(reader,
                                       {WeightRole::kAttentionOutput, "attention output", hidden},
                                       shape_.q_size(), &to.attention_output));
    TANDEM_RETURN_IF_ERROR(Pack(reader,
                                {{WeightRole::kGate, "gate", shape_.intermediate_size},
                                 {WeightRole::kUp, "up", shape_.intermediate_size}},
                                hidden, {}, &to.gate_up));
    return PackColumns(reader, {WeightRole::kDown, "down", hidden}, shape_.intermediate_size,
                       &to.down);
  }

  absl::Status Norm(const Reader& reader, const Part& part, DeviceVector* out) {
    std::vector<float> values;
    TANDEM_RETURN_IF_ERROR(reader.Vector(part, &values));
    TANDEM_ASSIGN_OR_RETURN(*out, DeviceVector::Create(context_.device(), values));
    return absl::OkStatus();
  }

  // This device's part of a vector.
  absl::Status RankVector(const Reader& reader, const Part& part, std::vector<float>* out) {
    std::vector<float> whole;
    TANDEM_RETURN_IF_ERROR(reader.Vector(part, &whole));
    const auto rows = static_cast<ptrdiff_t>(part.rows / parallel_.size);
    const auto first = whole.begin() + parallel_.rank * rows;
    out->insert(out->end(), first, first + rows);
    return absl::OkStatus();
  }

  // This device's rows of each part.
  absl::Status Pack(const Reader& reader, const std::vector<Part>& parts, int64_t cols,
                    std::vector<float> bias, std::unique_ptr<ops::PackedLinear>* out) {
    ops::LinearSource source;
    std::vector<RowWindow> windows;
    for (const Part& part : parts) {
      TANDEM_ASSIGN_OR_RETURN(const WeightView view, reader.Matrix(part, cols));
      const int64_t rows = part.rows / parallel_.size;
      windows.push_back({view, parallel_.rank * rows, rows});
      source.out_features += rows;
    }
    source.in_features = cols;
    source.bias = std::move(bias);
    source.read = Stacked(std::move(windows));
    return Queue(std::move(source), out);
  }

  // This device's columns.
  absl::Status PackColumns(const Reader& reader, const Part& part, int64_t cols,
                           std::unique_ptr<ops::PackedLinear>* out) {
    ops::LinearSource source;
    TANDEM_ASSIGN_OR_RETURN(const WeightView view, reader.Matrix(part, cols));
    source.out_features = part.rows;
    source.in_features = cols / parallel_.size;
    source.read = parallel_.size == 1
                      ? Stacked({{view, 0, view.rows}})
                      : Columns(view, parallel_.rank * source.in_features, source.in_features);
    return Queue(std::move(source), out);
  }

  absl::Status Queue(ops::LinearSource source, std::unique_ptr<ops::PackedLinear>* out) {
    source.what = "the model's weights";
    weights_.flops_per_token += 2.0 * static_cast<double>(source.out_features * source.in_features);
    TANDEM_ASSIGN_OR_RETURN(*out, ops::PackLinear(context_, std::move(source)));
    weights_.matrix_bytes += (*out)->weights->bytes();
    return absl::OkStatus();
  }

  absl::Status QueueEmbedding(const Reader& reader) {
    TANDEM_ASSIGN_OR_RETURN(
        const WeightView view,
        reader.Matrix({WeightRole::kTokenEmbedding, "token embedding", shape_.vocab_size},
                      shape_.hidden_size));
    const size_t bytes = static_cast<size_t>(view.rows) * static_cast<size_t>(view.cols) *
                         static_cast<size_t>(DTypeBytes(context_.compute_dtype()));
    TANDEM_ASSIGN_OR_RETURN(weights_.embedding,
                            context_.device().Allocate(bytes, "the token embedding"));
    ops::ConvertTable(context_, {Stacked({{view, 0, view.rows}}), view.rows, view.cols,
                                 weights_.embedding->data()});
    return absl::OkStatus();
  }  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the embedding is in weights_

  ops::OpContext& context_;
  const ModelFiles& files_;
  const ModelShape& shape_;  // of the whole model
  const TensorParallel parallel_;
  const LoadProgress& progress_;
  Weights weights_;
  int64_t last_log_us_ = base::SystemClock().NowUs();
};

}  // namespace

absl::StatusOr<DeviceVector> DeviceVector::Create(device::Device& device,
                                                  std::span<const float> values) {
  DeviceVector vector;
  TANDEM_ASSIGN_OR_RETURN(vector.buffer_,
                          device.Allocate(values.size_bytes(), "the model's norm weights"));
  TANDEM_RETURN_IF_ERROR(device.Upload(vector.buffer_->data(), values.data(), values.size_bytes()));
  return vector;
}

absl::StatusOr<Weights> LoadWeights(ops::OpContext& context, const ModelFiles& files,
                                    const TensorParallel& parallel, const LoadProgress& progress) {
  return Loader(context, files, parallel, progress).Load();
}

}  // namespace tandem::gpu_worker::model
