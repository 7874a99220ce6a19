#include "gpu_worker/ops/linear.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/linear_cuda.h"
#include "gpu_worker/ops/linear_host.h"
#include "gpu_worker/ops/linear_paced.h"
#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops {

absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(OpContext& context, LinearSource source) {
  TANDEM_CHECK(source.bias.empty() ||
               static_cast<int64_t>(source.bias.size()) == source.out_features);
  auto packed = std::make_unique<PackedLinear>();
  if (paced::IsPaced(context)) {
    TANDEM_RETURN_IF_ERROR(paced::PackLinear(context, std::move(source), *packed));
    return packed;
  }
  if (cuda::IsCuda(context)) {
    TANDEM_RETURN_IF_ERROR(cuda::PackLinear(context, source, *packed));
    return packed;
  }
  try {
    packed->format =
        host::ChoosePackedFormat(context.compute_dtype(), source.out_features, source.in_features);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(source.what, ": oneDNN: ", e.what()));
  }
  TANDEM_ASSIGN_OR_RETURN(packed->weights,
                          context.device().Allocate(packed->format.bytes, source.what));
  packed->bias = std::move(source.bias);
  context.stream().Launch([&context, source = std::move(source), target = packed.get()] {
    return host::PackLinear(context, source, *target);
  });
  return packed;
}

void ConvertTable(OpContext& context, ConvertTableArgs args) {
  TANDEM_CHECK(args.read && args.out != nullptr);
  if (paced::IsPaced(context)) {
    return;  // there is no memory to fill
  }
  if (cuda::IsCuda(context)) {
    cuda::ConvertTable(context, args);
    return;
  }
  context.stream().Launch(
      [&context, args = std::move(args)] { return host::ConvertTable(context, args); });
}

void ShareCores(int32_t others) {
  omp_set_num_threads(std::max(1, omp_get_max_threads() / (others + 1)));
}

void EndLoading(OpContext& context) {
  if (cuda::IsCuda(context)) {
    context.cuda().weight_staging().Free();
  }
}

int64_t LinearRows(int64_t rows) { return host::RowBucket(rows); }

void Linear(OpContext& context, const LinearArgs& args) {
  TANDEM_CHECK(args.weights != nullptr && args.in != nullptr && args.out != nullptr);
  TANDEM_CHECK(args.out_dtype == DType::kFloat32 ||
               (args.out_dtype == context.compute_dtype() && !args.accumulate));
  if (args.rows > 0 && paced::IsPaced(context)) {
    paced::Linear(context, args);
  } else if (args.rows > 0 && cuda::IsCuda(context)) {
    cuda::Linear(context, args);
  } else if (args.rows > 0) {
    context.stream().Launch([&context, args] { return host::Linear(context, args); });
  }
}

void GatherPackedRows(OpContext& context, const PackedLinear& weights, std::span<const int32_t> ids,
                      float* out) {
  if (paced::IsPaced(context)) {
    paced::GatherPackedRows(context, weights, ids);
    return;
  }
  if (cuda::IsCuda(context)) {
    cuda::GatherPackedRows(context, weights, ids, out);
    return;
  }
  context.stream().Launch([&context, &weights, ids, out] {
    return host::GatherPackedRows(context, weights, ids, out);
  });
}

}  // namespace tandem::gpu_worker::ops
