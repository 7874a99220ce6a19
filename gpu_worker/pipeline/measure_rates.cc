#include "gpu_worker/pipeline/measure_rates.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "common/base/clock.h"
#include "gpu_worker/ops/attention.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kBudgetUs = 25'000;  // for each quantity
constexpr int64_t kSyncTimeoutUs = 60'000'000;
constexpr int32_t kManyRows = 128;
constexpr int32_t kContextTokens = 512;
constexpr int32_t kContextRows = 4;
// Beside a GPU, until real steps are measured: a host of two memory channels, a link of PCIe 3.
constexpr double kAssumedHostBytesPerUs = 30'000;
constexpr double kAssumedLinkBytesPerUs = 10'000;

class Measurement {
 public:
  explicit Measurement(const PipelineParts& parts) : parts_(parts) {}

  MeasuredRates Run() {
    const model::Weights& weights = parts_.decoder->weights();
    const ModelShape& shape = parts_.decoder->shape();
    MeasuredRates rates;
    rates.num_layers = shape.num_layers;
    rates.weight_bytes = static_cast<double>(weights.matrix_bytes);
    rates.flops_per_token = weights.flops_per_token;
    rates.kv_bytes_per_token_layer = TokenBytes(parts_.sizes.gpu);
    rates.cpu_kv_bytes_per_token_layer = TokenBytes(parts_.sizes.cpu);
    // CPU attention takes the host device's own cores.
    rates.overlap = IsCuda() ? 1.0 : 0.0;

    const double layer_bytes = LayerBytes();
    const double layer_flops = LayerFlops();
    rates.launch_us = TimeUs([this](int32_t) { LaunchEmpty(); });
    const double one_row_us = TimeUs([this](int32_t i) { LaunchLayer(i, 1); });
    rates.memory_bytes_per_us = layer_bytes / std::max(one_row_us - 2 * rates.launch_us, 1.0);
    const int32_t rows = std::min(kManyRows, max_rows());
    const double many_rows_us = TimeUs([this, rows](int32_t i) { LaunchLayer(i, rows); });
    rates.flops_per_us = layer_flops * rows / std::max(many_rows_us, 1.0);
    MeasureAttention(rates);
    return rates;
  }

 private:
  static double TokenBytes(const kv::PoolGeometry& geometry) {
    return static_cast<double>(geometry.layer_bytes()) / geometry.block_tokens;
  }
  int32_t max_rows() const { return std::min(kManyRows, parts_.decoder->max_rows()); }

  double LayerBytes() const {
    const model::LayerWeights& layer = parts_.decoder->weights().layers.front();
    return static_cast<double>(layer.qkv->weights->bytes() +
                               layer.attention_output->weights->bytes() +
                               layer.gate_up->weights->bytes() + layer.down->weights->bytes());
  }
  double LayerFlops() const {
    const model::LayerWeights& layer = parts_.decoder->weights().layers.front();
    double flops = 0;
    for (const auto* matrix :
         {layer.qkv.get(), layer.attention_output.get(), layer.gate_up.get(), layer.down.get()}) {
      flops += 2.0 * static_cast<double>(matrix->out_features() * matrix->in_features());
    }
    return flops;
  }

  bool IsCuda() const { return parts_.device->kind() == device::DeviceKind::kCuda; }

  void LaunchEmpty() {
    if (IsCuda()) {
      parts_.compute->Clear(parts_.decoder->attention_out(), sizeof(float));
      return;
    }
    parts_.compute->Launch([] {
#pragma omp parallel
      { asm volatile("" ::: "memory"); }
      return absl::OkStatus();
    });
  }

  void LaunchLayer(int32_t i, int32_t rows) {
    const int32_t layer = i % parts_.decoder->shape().num_layers;
    parts_.decoder->Pre(layer, {0, rows}, std::span(zeros_).first(static_cast<size_t>(rows)));
    parts_.decoder->Post(layer, {0, rows});
  }

  // Mean time of `launch(i)`, first calls (which make primitives) apart.
  double TimeUs(const std::function<void(int32_t)>& launch) {
    for (int32_t i = 0; i < 2; ++i) {
      launch(i);
    }
    Sync();
    const base::Clock& clock = base::SystemClock();
    const int64_t start_us = clock.NowUs();
    int32_t count = 0;
    int64_t now_us = start_us;
    while (count < 4 || (now_us - start_us < kBudgetUs && count < 4096)) {
      for (int32_t i = 0; i < 4; ++i) {
        launch(count++);
      }
      Sync();
      now_us = clock.NowUs();
      if (now_us - start_us > kBudgetUs) {
        break;
      }
    }
    return static_cast<double>(now_us - start_us) / count;
  }

  void Sync() { (void)parts_.compute->Synchronize(kSyncTimeoutUs); }

  void MeasureAttention(MeasuredRates& rates) {
    const kv::PoolGeometry& geometry = parts_.sizes.gpu;
    const int32_t blocks = std::min(parts_.sizes.num_gpu_blocks,
                                    kContextRows * kContextTokens / geometry.block_tokens);
    if (parts_.device->kind() != device::DeviceKind::kPaced) {
      parts_.compute->Clear(parts_.gpu_pool->data(),
                            static_cast<size_t>(blocks) * geometry.block_bytes());
    }
    const int32_t rows = std::clamp(blocks * geometry.block_tokens / kContextTokens, 1,
                                    std::min(kContextRows, parts_.decoder->max_rows()));
    const int32_t blocks_per_row = std::max(1, blocks / rows);
    const int32_t tokens =
        std::min(blocks_per_row * geometry.block_tokens, parts_.sizes.max_model_len);
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::vector<ops::RowRun> runs;
    for (int32_t row = 0; row < rows; ++row) {
      runs.push_back({row, 1, tokens - 1,
                      std::span(table).subspan(static_cast<size_t>(row * blocks_per_row),
                                               static_cast<size_t>(blocks_per_row))});
    }
    ops::AttentionArgs args;
    args.qkv = parts_.decoder->qkv();
    args.scale = parts_.attention_scale;
    args.out = parts_.decoder->attention_out();
    const double us = TimeUs([&](int32_t i) {
      args.pool = parts_.GpuLayer(i % geometry.num_layers);
      ops::DecodeAttention(*parts_.context, args, runs);
    });
    const double bytes = static_cast<double>(rows) * tokens * rates.kv_bytes_per_token_layer;
    rates.attention_bytes_per_us = bytes / std::max(us, 1.0);
    // The same kernels on the same cores; the CPU worker adds its round trip through the exchange.
    rates.cpu_attention_bytes_per_us = rates.attention_bytes_per_us;
    rates.copy_bytes_per_us = rates.attention_bytes_per_us / 2;
    if (IsCuda()) {
      rates.cpu_attention_bytes_per_us = kAssumedHostBytesPerUs;
      rates.copy_bytes_per_us = kAssumedLinkBytesPerUs;
    } else if (parts_.staging != nullptr) {
      MeasureCopy(rates, std::span(table).first(static_cast<size_t>(blocks_per_row)));
    }
  }

  void MeasureCopy(MeasuredRates& rates, std::span<const int32_t> table) {
    ops::CopyKvArgs copy;
    copy.from_table = table;
    copy.to = parts_.StagingLayer();
    copy.to_table = parts_.staging_table;
    copy.count = static_cast<int64_t>(std::min(table.size(), parts_.staging_table.size())) *
                 parts_.sizes.gpu.block_tokens;
    const double us = TimeUs([&](int32_t i) {
      copy.from = parts_.GpuLayer(i % parts_.sizes.gpu.num_layers);
      ops::CopyKv(*parts_.context, *parts_.compute, copy);
    });
    rates.copy_bytes_per_us =
        static_cast<double>(copy.count) * rates.kv_bytes_per_token_layer / std::max(us, 1.0);
  }

  const PipelineParts& parts_;
  std::vector<int32_t> zeros_ = std::vector<int32_t>(kManyRows, 0);
};

}  // namespace

MeasuredRates MeasurePipeline(const PipelineParts& parts) {
  // Whatever memory holds would do for timing but for NaN and subnormal numbers, which are slow.
  const std::vector<int32_t> tokens(
      static_cast<size_t>(std::min(kManyRows, parts.decoder->max_rows())), 0);
  (void)parts.decoder->PreparePositions(1);  // its own steps say what is wrong with the device
  parts.decoder->Embed({0, static_cast<int32_t>(tokens.size())}, tokens);
  parts.decoder->ClearAttention(static_cast<int32_t>(tokens.size()));
  (void)parts.compute->Synchronize(kSyncTimeoutUs);
  return Measurement(parts).Run();
}

}  // namespace tandem::gpu_worker
