#include "gpu_worker/ops/rows.h"

#include "common/base/check.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/paced.h"
#include "gpu_worker/ops/rows_cuda.h"
#include "gpu_worker/ops/rows_host.h"
#include "gpu_worker/ops/rows_paced.h"

namespace tandem::gpu_worker::ops {

void Embed(OpContext& context, const EmbedArgs& args) {
  TANDEM_CHECK(args.table != nullptr && args.out != nullptr && args.width > 0);
  if (paced::IsPaced(context)) {
    paced::Embed(context, args);
  } else if (cuda::IsCuda(context)) {
    cuda::Embed(context, args);
  } else {
    context.stream().Launch([&context, args] { return host::Embed(context, args); });
  }
}

void RmsNorm(OpContext& context, const RmsNormArgs& args) {
  TANDEM_CHECK(args.in != nullptr && args.weight != nullptr && args.out != nullptr);
  if (paced::IsPaced(context)) {
    paced::RmsNorm(context, args);
  } else if (cuda::IsCuda(context)) {
    cuda::RmsNorm(context, args);
  } else {
    context.stream().Launch([&context, args] { return host::RmsNorm(context, args); });
  }
}

void Rope(OpContext& context, const RopeArgs& args) {
  TANDEM_CHECK(args.qkv != nullptr && args.cos != nullptr && args.sin != nullptr);
  TANDEM_CHECK(args.head_dim > 0 && args.head_dim % 2 == 0);
  TANDEM_CHECK((args.q_norm == nullptr) == (args.k_norm == nullptr));
  if (paced::IsPaced(context)) {
    paced::Rope(context, args);
  } else if (cuda::IsCuda(context)) {
    cuda::Rope(context, args);
  } else {
    context.stream().Launch([&context, args] { return host::Rope(context, args); });
  }
}

void SiluMul(OpContext& context, const SiluMulArgs& args) {
  TANDEM_CHECK(args.gate_up != nullptr && args.out != nullptr);
  if (paced::IsPaced(context)) {
    paced::SiluMul(context, args);
  } else if (cuda::IsCuda(context)) {
    cuda::SiluMul(context, args);
  } else {
    context.stream().Launch([&context, args] { return host::SiluMul(context, args); });
  }
}

void PackRows(const OpContext& context, const PackRowsArgs& args) {
  TANDEM_CHECK(args.first_column + args.width <= args.in_width);
  host::PackRows(context, args);
}

}  // namespace tandem::gpu_worker::ops
