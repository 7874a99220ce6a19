#include <algorithm>
#include <cmath>

#include "gpu_worker/cost_model/cost_model.h"

namespace tandem::gpu_worker {
namespace {

// A layer's post and done through the exchange, both sides asleep before: two futex wake-ups and
// their context switches (`tandem bench exchange` measures it).
constexpr double kExchangeRoundTripUs = 30.0;

double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0.0; }

class RooflineCostModel : public CostModel {
 public:
  explicit RooflineCostModel(const MeasuredRates& rates)
      : rates_(rates), layers_(std::max(rates.num_layers, 1)) {
    weight_bytes_layer_ = rates.weight_bytes / layers_;
    flops_row_layer_ = rates.flops_per_token / layers_;
    // A layer of hidden size h has about 12 h^2 weights, two FLOP each; attention does 4 h FLOP per
    // query and key pair.
    attention_flops_pair_ = 4.0 * std::sqrt(flops_row_layer_ / 24.0);
    // Q, K, V and O rows: about four hidden sizes of two bytes.
    exchange_bytes_row_ = 8.0 * std::sqrt(flops_row_layer_ / 24.0);
  }

  int32_t num_layers() const override { return layers_; }

  double LinearUs(int64_t rows) const override {
    if (rows <= 0) {
      return 0;
    }
    return std::max(Over(weight_bytes_layer_, rates_.memory_bytes_per_us),
                    Over(static_cast<double>(rows) * flops_row_layer_, rates_.flops_per_us));
  }

  double PrefillUs(int64_t chunk, int64_t context) const override {
    const double tokens = static_cast<double>(chunk);
    const double pairs = tokens * (static_cast<double>(context) + (tokens + 1) / 2);
    const double bytes = (static_cast<double>(context) + tokens) * rates_.kv_bytes_per_token_layer;
    return std::max(Over(pairs * attention_flops_pair_, rates_.flops_per_us),
                    Over(bytes, rates_.attention_bytes_per_us));
  }

  double GpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    return sequences <= 0
               ? 0
               : Over(static_cast<double>(context_tokens) * rates_.kv_bytes_per_token_layer,
                      rates_.attention_bytes_per_us);
  }

  double CpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    if (sequences <= 0 || rates_.cpu_attention_bytes_per_us <= 0) {
      return 0;
    }
    return kExchangeRoundTripUs + static_cast<double>(context_tokens) *
                                      rates_.cpu_kv_bytes_per_token_layer /
                                      rates_.cpu_attention_bytes_per_us;
  }

  double TransferUs(int64_t rows) const override {
    return Over(static_cast<double>(rows) * exchange_bytes_row_, rates_.copy_bytes_per_us);
  }

  double CopyUs(int64_t tokens) const override {
    return Over(static_cast<double>(tokens) * rates_.kv_bytes_per_token_layer,
                rates_.copy_bytes_per_us);
  }

  double LaunchUs() const override { return std::max(rates_.launch_us, 0.0); }
  double overlap() const override { return std::clamp(rates_.overlap, 0.0, 1.0); }

 private:
  MeasuredRates rates_;
  int32_t layers_;
  double weight_bytes_layer_ = 0;
  double flops_row_layer_ = 0;
  double attention_flops_pair_ = 0;
  double exchange_bytes_row_ = 0;
};

}  // namespace

std::unique_ptr<CostModel> MakeRooflineCostModel(const MeasuredRates& rates) {
  return std::make_unique<RooflineCostModel>(rates);
}

}  // namespace tandem::gpu_worker
