// Times of the attention and copy kernels on the CUDA device, a JSON line for each, with what they
// move or compute per second. Usage: cuda_kernel_bench [--smoke]   (--smoke: tiny shapes, one run:
// that it works at all)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/attention.h"
#include "gpu_worker/ops/op.h"

namespace tandem::gpu_worker::ops {
namespace {

constexpr int64_t kTimeoutUs = 60'000'000;
constexpr int32_t kBlockTokens = 16;

struct Heads {
  int32_t q;
  int32_t kv;
  int32_t dim;
};

// `rows` sequences that attend to `context` tokens each; prefill: one run of `rows` rows.
struct Load {
  Heads heads;
  int32_t rows;
  int32_t context;
};

class Bench {
 public:
  explicit Bench(bool smoke) : repeats_(smoke ? 1 : 50) {
    auto device = device::CreateCudaDevice();
    if (!device.ok()) {
      std::fprintf(stderr, "cuda_kernel_bench: %s\n",
                   std::string(device.status().message()).c_str());
      std::exit(2);
    }
    device_ = *std::move(device);
    stream_ = device_->CreateComputeStream();
    const DType dtype =
        device_->traits().compute_capability < 80 ? DType::kFloat16 : DType::kBFloat16;
    context_ = OpContext::Create(device_.get(), stream_.get(), dtype).value();
  }

  void Decode(const Load& load) {
    Prepare(load, load.rows);
    std::vector<RowRun> runs;
    for (int32_t row = 0; row < load.rows; ++row) {
      runs.push_back({row, 1, load.context - 1, Table(row, load.context)});
    }
    const double us = TimeOf([&] { DecodeAttention(*context_, args_, runs); });
    const double bytes = 4.0 * load.rows * load.context * load.heads.kv * load.heads.dim;
    Report("decode_attention", load, us, "gb_per_s", bytes / us / 1e3);
  }

  void Prefill(const Load& load) {
    Prepare(load, 1);
    const int32_t before = load.context - load.rows;
    const std::vector<RowRun> runs = {{0, load.rows, before, Table(0, load.context)}};
    const double us = TimeOf([&] { PrefillAttention(*context_, args_, runs); });
    const double pairs = static_cast<double>(load.rows) * (before + (load.rows + 1) / 2.0);
    Report("prefill_attention", load, us, "tflop_per_s",
           4.0 * pairs * load.heads.q * load.heads.dim / us / 1e6);
  }

  void Store(const Load& load) {
    Prepare(load, 1);
    const std::vector<RowRun> runs = {{0, load.rows, 0, Table(0, load.context)}};
    const double us = TimeOf([&] { StoreKv(*context_, args_.qkv, runs, args_.pool); });
    const double bytes =
        12.0 * load.rows * load.heads.kv * load.heads.dim;  // float32 in, 16 bits out
    Report("store_kv", load, us, "gb_per_s", bytes / us / 1e3);
  }

  // Device to device; what leaves for the host is bound by its link.
  void Copy(const Load& load) {
    Prepare(load, 2);
    CopyKvArgs copy{args_.pool,  Table(0, load.context), args_.pool, Table(1, load.context), 0,
                    load.context};
    const double us = TimeOf([&] { CopyKv(*context_, *stream_, copy); });
    const double bytes = 8.0 * load.context * load.heads.kv * load.heads.dim;  // read and written
    Report("copy_kv", load, us, "gb_per_s", bytes / us / 1e3);
  }

 private:
  // A pool for `sequences` contexts, zeroed (times do not depend on the numbers), with its blocks
  // in random order, and rows of Q, K and V.
  void Prepare(const Load& load, int32_t sequences) {
    const int32_t blocks = (load.context + kBlockTokens - 1) / kBlockTokens;
    geometry_ = {DType::kBFloat16, 1, load.heads.kv, load.heads.dim, kBlockTokens};
    const size_t pool_bytes =
        geometry_.block_bytes() * static_cast<size_t>(blocks) * static_cast<size_t>(sequences);
    const auto q_width = static_cast<size_t>(load.heads.q * load.heads.dim);
    const auto stride = q_width + static_cast<size_t>(2 * load.heads.kv * load.heads.dim);
    pool_ = Zeroed(pool_bytes);
    qkv_ = Zeroed(static_cast<size_t>(load.rows) * stride * sizeof(float));
    out_ = Zeroed(static_cast<size_t>(load.rows) * q_width * sizeof(uint16_t));
    table_.resize(static_cast<size_t>(blocks) * static_cast<size_t>(sequences));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
    args_ = {{qkv_->as<float>(), load.heads.q, load.heads.kv, load.heads.dim},
             {&geometry_, pool_->data(), 0},
             0.1f,
             out_->data()};
  }
  std::unique_ptr<device::Buffer> Zeroed(size_t bytes) {
    auto buffer = device_->Allocate(bytes, "benchmark").value();
    stream_->Clear(buffer->data(), bytes);
    TANDEM_CHECK(stream_->Synchronize(kTimeoutUs).ok());
    return buffer;
  }
  std::span<const int32_t> Table(int32_t sequence, int32_t context) const {
    const auto blocks = static_cast<size_t>((context + kBlockTokens - 1) / kBlockTokens);
    return std::span(table_).subspan(static_cast<size_t>(sequence) * blocks, blocks);
  }

  // Of one launch, the first apart: it uploads tables.
  template <typename Launch>
  double TimeOf(const Launch& launch) {
    double begin = 0;
    double end = 0;
    launch();
    stream_->Stamp(&begin);
    for (int i = 0; i < repeats_; ++i) {
      launch();
    }
    stream_->Stamp(&end);
    const absl::Status status = stream_->Synchronize(kTimeoutUs);
    if (!status.ok()) {
      std::fprintf(stderr, "cuda_kernel_bench: %s\n", std::string(status.message()).c_str());
      std::exit(1);
    }
    return std::max(end - begin, 1e-3) / repeats_;
  }
  static void Report(const char* kernel, const Load& load, double us, const char* unit,
                     double rate) {
    std::printf(
        "{\"kernel\": \"%s\", \"q_heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"rows\": %d, "
        "\"context\": %d, \"us\": %.2f, \"%s\": %.1f}\n",
        kernel, load.heads.q, load.heads.kv, load.heads.dim, load.rows, load.context, us, unit,
        rate);
    std::fflush(stdout);
  }

  const int repeats_;
  std::unique_ptr<device::CudaDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<OpContext> context_;
  kv::PoolGeometry geometry_;
  std::unique_ptr<device::Buffer> pool_;
  std::unique_ptr<device::Buffer> qkv_;
  std::unique_ptr<device::Buffer> out_;
  std::vector<int32_t> table_;
  AttentionArgs args_;
};

int Main(bool smoke) {
  Bench bench(smoke);
  if (smoke) {
    bench.Decode({{4, 2, 64}, 2, 300});
    bench.Prefill({{4, 2, 64}, 40, 60});
    bench.Store({{4, 2, 64}, 20, 20});
    bench.Copy({{4, 2, 64}, 1, 70});
    return 0;
  }
  for (const Heads heads :
       {Heads{32, 8, 128}, Heads{32, 32, 128}, Heads{28, 4, 128}, Heads{16, 2, 256}}) {
    for (const Load& load :
         {Load{heads, 1, 32768}, Load{heads, 16, 4096}, Load{heads, 128, 2048}}) {
      bench.Decode(load);
    }
    for (const Load& load :
         {Load{heads, 512, 512}, Load{heads, 4096, 4096}, Load{heads, 512, 8192}}) {
      bench.Prefill(load);
    }
    bench.Store({heads, 4096, 4096});
    bench.Copy({heads, 1, 16384});
  }
  return 0;
}

}  // namespace
}  // namespace tandem::gpu_worker::ops

int main(int argc, char** argv) {
  return tandem::gpu_worker::ops::Main(argc > 1 && std::strcmp(argv[1], "--smoke") == 0);
}
