#include "gpu_worker/ops/rows_paced.h"

#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops::paced {
namespace {

double Product(double a, int64_t b) { return a * static_cast<double>(b); }

}  // namespace

void Embed(OpContext& context, const EmbedArgs& args) {
  ChargeElementwise(context, Product(2.0 * static_cast<double>(args.ids.size()), args.width));
}

void RmsNorm(OpContext& context, const RmsNormArgs& args) {
  ChargeElementwise(context, Product(2.0 * static_cast<double>(args.rows), args.width));
}

void Rope(OpContext& context, const RopeArgs& args) {
  const int64_t width = int64_t{args.num_q_heads + 2 * args.num_kv_heads} * args.head_dim;
  ChargeElementwise(context, Product(2.0 * static_cast<double>(args.positions.size()), width));
}

void SiluMul(OpContext& context, const SiluMulArgs& args) {
  ChargeElementwise(context, Product(3.0 * static_cast<double>(args.rows), args.width));
}

void Sample(OpContext& context, int64_t rows, int64_t vocab_size) {
  ChargeElementwise(context, Product(2.0 * static_cast<double>(rows), vocab_size));
}

}  // namespace tandem::gpu_worker::ops::paced
