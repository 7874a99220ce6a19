#include "gpu_worker/ops/linear_paced.h"

#include <utility>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops::paced {

absl::Status PackLinear(OpContext& context, LinearSource source, PackedLinear& packed) {
  packed.format.dtype = context.compute_dtype();
  packed.format.n = source.out_features;
  packed.format.k = source.in_features;
  packed.format.bytes = static_cast<size_t>(source.out_features * source.in_features *
                                            DTypeBytes(context.compute_dtype()));
  TANDEM_ASSIGN_OR_RETURN(packed.weights,
                          context.device().Allocate(packed.format.bytes, source.what));
  packed.bias = std::move(source.bias);
  return absl::OkStatus();
}

void Linear(OpContext& context, const LinearArgs& args) {
  const PackedLinear& weights = *args.weights;
  ChargeKernel(context,
               MatmulUs(ProfileOf(context), {args.rows, weights.in_features(),
                                             weights.out_features(), context.compute_dtype()}));
}

void GatherPackedRows(OpContext& context, const PackedLinear& weights,
                      std::span<const int32_t> ids) {
  ChargeElementwise(
      context, 2.0 * static_cast<double>(ids.size()) * static_cast<double>(weights.in_features()));
}

}  // namespace tandem::gpu_worker::ops::paced
