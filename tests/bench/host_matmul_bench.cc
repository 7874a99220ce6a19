// The host device's products of one model in bfloat16: the format that it chooses and oneDNN's own,
// in turns, over as many weight matrices as the model has, so that they come from memory. Where
// oneDNN multiplies no bfloat16 (no AVX-512), its own is in float32.
//   build/tests/host_matmul_bench [ROUNDS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/clock.h"
#include "common/model_shape/known_shapes.h"
#include "gpu_worker/ops/host/matmul.h"

namespace tandem::gpu_worker::ops::host {
namespace {

struct Product {
  int64_t n;
  int64_t k;
  int64_t count;
};

std::vector<Product> ProductsOf(const ModelShape& shape, bool head) {
  std::vector<Product> products = {
      {shape.q_size() + 2 * shape.kv_size(), shape.hidden_size, shape.num_layers},
      {shape.hidden_size, shape.q_size(), shape.num_layers},
      {2 * int64_t{shape.intermediate_size}, shape.hidden_size, shape.num_layers},
      {shape.hidden_size, shape.intermediate_size, shape.num_layers}};
  if (head) {
    products.push_back({shape.vocab_size, shape.hidden_size, 1});
  }
  return products;
}

// Small numbers, so that no sum overflows.
void Fill(std::vector<uint16_t>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    (*values)[i] = static_cast<uint16_t>(0x3c00 + i % 509);
  }
}

DType OneDnnDType() {
  const auto chosen = ChoosePackedFormat(DType::kBFloat16, 64, 64).order;
  return chosen == PackedFormat::Order::kAvx2 ? DType::kFloat32 : DType::kBFloat16;
}

// Microseconds for all matrices of a product: [0] as chosen, [1] by oneDNN.
void Measure(const Product& product, int64_t rows, int rounds, double* best_us) {
  const PackedFormat formats[] = {
      ChoosePackedFormat(DType::kBFloat16, product.n, product.k),
      OneDnnPackedFormat(OneDnnDType(), product.n, product.k),
  };
  const size_t elements = std::max(formats[0].bytes, formats[1].bytes) / sizeof(uint16_t);
  const int64_t room = RowBucket(rows);
  std::vector<uint16_t> weights(elements * static_cast<size_t>(product.count));
  std::vector<uint16_t> in(static_cast<size_t>(room * product.k) * 2);
  std::vector<float> out(static_cast<size_t>(room * product.n));
  Fill(&weights);
  Fill(&in);
  MatmulCache cache;
  best_us[0] = best_us[1] = 1e18;
  for (int round = 0; round < rounds; ++round) {
    for (int way = 0; way < 2; ++way) {
      const int64_t start = base::SystemClock().NowUs();
      for (int64_t i = 0; i < product.count; ++i) {
        MatmulCall call;
        call.format = &formats[way];
        call.weights = reinterpret_cast<const std::byte*>(weights.data()) +
                       static_cast<size_t>(i) * elements * sizeof(uint16_t);
        call.in = reinterpret_cast<const std::byte*>(in.data());
        call.out = reinterpret_cast<std::byte*>(out.data());
        call.rows = rows;
        cache.Run(call);
      }
      best_us[way] =
          std::min(best_us[way], static_cast<double>(base::SystemClock().NowUs() - start));
    }
  }
}

void Run(int rounds) {
  using Order = PackedFormat::Order;
  const Order order = ChoosePackedFormat(DType::kBFloat16, 64, 64).order;
  std::puts(order == Order::kAmx    ? "chosen: AMX"
            : order == Order::kAvx2 ? "chosen: AVX2; oneDNN in float32"
                                    : "both columns are oneDNN");
  std::puts("  rows  chosen ms  oneDNN ms");
  for (const int64_t rows : {1, 8, 16, 40, 256, 512, 2048}) {
    double total_us[2] = {0, 0};
    // A prompt needs the head for its last row only.
    for (const Product& product : ProductsOf(SmolLm2Of135M(), rows <= 64)) {
      double best_us[2];
      Measure(product, rows, rounds, best_us);
      total_us[0] += best_us[0];
      total_us[1] += best_us[1];
    }
    std::printf("%6ld  %9.2f  %9.2f\n", static_cast<long>(rows), total_us[0] / 1e3,
                total_us[1] / 1e3);
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::host

int main(int argc, char** argv) {
  tandem::gpu_worker::ops::host::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 6);
  return 0;
}
