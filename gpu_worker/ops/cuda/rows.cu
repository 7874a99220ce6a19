#include "gpu_worker/ops/cuda/numbers.cuh"

// Operators on single rows. Each says its grid; blocks have kRowThreads threads.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kRowThreads = 256;

// Grid [rows].
template <typename Type>
TANDEM_DEVICE void EmbedRow(const EmbedParams& params) {
  const int64_t from = int64_t{params.ids[BlockX()]} * params.width;
  const int64_t to = int64_t{BlockX()} * params.width;
  if (params.width % 4 == 0) {
    for (int i = ThreadIndex() * 4; i < params.width; i += BlockThreads() * 4) {
      float values[4];
      LoadFour<Type>(params.table, from + i, values);
      StoreFour<Float32>(params.out, to + i, values);
    }
    return;
  }
  for (int i = ThreadIndex(); i < params.width; i += BlockThreads()) {
    params.out[to + i] = Type::Load(params.table, from + i);
  }
}

// The sum over the block's threads; `parts` has an element per warp.
TANDEM_DEVICE float BlockSum(float value, const Shared<float>& parts) {
  value = WarpSum(value);
  if (Lane() == 0) {
    parts.Store(WarpIndex(), value);
  }
  SyncBlock();
  float sum = 0.0f;
  for (int warp = 0; warp < BlockThreads() / kWarpThreads; ++warp) {
    sum += parts.Load(warp);
  }
  return sum;
}

// Grid [rows].
template <typename Type>
TANDEM_DEVICE void RmsNormRow(const RmsNormParams& params) {
  TANDEM_SHARED(float, parts, kRowThreads / kWarpThreads);
  const int row = BlockX();
  const int from_row = params.row_ids != nullptr ? params.row_ids[row] : row;
  const float* in = params.in + int64_t{from_row} * params.width;
  const int64_t to = int64_t{row} * params.width;
  const bool is_wide = params.width % 4 == 0;
  float sum = 0.0f;
  if (is_wide) {
    for (int i = ThreadIndex() * 4; i < params.width; i += BlockThreads() * 4) {
      float values[4];
      LoadFour<Float32>(in, i, values);
      sum += values[0] * values[0] + values[1] * values[1] + values[2] * values[2] +
             values[3] * values[3];
    }
  } else {
    for (int i = ThreadIndex(); i < params.width; i += BlockThreads()) {
      sum += in[i] * in[i];
    }
  }
  const float mean = BlockSum(sum, parts) / static_cast<float>(params.width);
  const float factor = RSqrt(mean + params.eps);
  if (is_wide) {
    for (int i = ThreadIndex() * 4; i < params.width; i += BlockThreads() * 4) {
      float values[4];
      float weights[4];
      LoadFour<Float32>(in, i, values);
      LoadFour<Float32>(params.weight, i, weights);
      TANDEM_UNROLL
      for (int k = 0; k < 4; ++k) {
        values[k] *= factor * weights[k];
      }
      StoreFour<Type>(params.out, to + i, values);
    }
    return;
  }
  for (int i = ThreadIndex(); i < params.width; i += BlockThreads()) {
    Type::Store(params.out, to + i, in[i] * factor * params.weight[i]);
  }
}

TANDEM_DEVICE float Silu(float x) { return x / (1.0f + Exp(-x)); }

// Grid [rows, pieces of 4 * kRowThreads columns].
template <typename Type>
TANDEM_DEVICE void SiluMulPiece(const SiluMulParams& params) {
  const int64_t gate = int64_t{BlockX()} * 2 * params.width;
  const int64_t to = int64_t{BlockX()} * params.width;
  const int begin = (BlockY() * BlockThreads() + ThreadIndex()) * 4;
  if (begin >= params.width) {
    return;
  }
  if (params.width % 4 == 0) {
    float gates[4];
    float ups[4];
    LoadFour<Type>(params.gate_up, gate + begin, gates);
    LoadFour<Type>(params.gate_up, gate + params.width + begin, ups);
    TANDEM_UNROLL
    for (int k = 0; k < 4; ++k) {
      gates[k] = Silu(gates[k]) * ups[k];
    }
    StoreFour<Type>(params.out, to + begin, gates);
    return;
  }
  const int end = begin + 4 < params.width ? begin + 4 : params.width;
  for (int i = begin; i < end; ++i) {
    const float value = Silu(Type::Load(params.gate_up, gate + i)) *
                        Type::Load(params.gate_up, gate + params.width + i);
    Type::Store(params.out, to + i, value);
  }
}

TANDEM_DEVICE float* HeadOf(const RopeParams& params) {
  const int64_t heads = params.num_q_heads + 2 * params.num_kv_heads;
  return params.qkv + (BlockX() * heads + BlockY()) * params.head_dim;
}

// Scaled by `factor` and `norm` (or null), then rotated by its row's position.
TANDEM_DEVICE void RotateHead(const RopeParams& params, float factor, const float* norm) {
  const int half = params.head_dim / 2;
  const int64_t line = int64_t{params.positions[BlockX()]} * half;
  float* values = HeadOf(params);
  for (int d = Lane(); d < half; d += kWarpThreads) {
    const float x = norm != nullptr ? values[d] * factor * norm[d] : values[d];
    const float y = norm != nullptr ? values[d + half] * factor * norm[d + half] : values[d + half];
    const float c = params.cos[line + d];
    const float s = params.sin[line + d];
    values[d] = x * c - y * s;
    values[d + half] = y * c + x * s;
  }
}

}  // namespace

TANDEM_KERNEL(embed_f32, EmbedParams, kRowThreads, kNoBarriers) { EmbedRow<Float32>(params); }
TANDEM_KERNEL(embed_bf16, EmbedParams, kRowThreads, kNoBarriers) { EmbedRow<BFloat16>(params); }
TANDEM_KERNEL(embed_f16, EmbedParams, kRowThreads, kNoBarriers) { EmbedRow<Half>(params); }

TANDEM_KERNEL(rms_norm_f32, RmsNormParams, kRowThreads, kBarriers) { RmsNormRow<Float32>(params); }
TANDEM_KERNEL(rms_norm_bf16, RmsNormParams, kRowThreads, kBarriers) {
  RmsNormRow<BFloat16>(params);
}
TANDEM_KERNEL(rms_norm_f16, RmsNormParams, kRowThreads, kBarriers) { RmsNormRow<Half>(params); }

TANDEM_KERNEL(silu_mul_f32, SiluMulParams, kRowThreads, kNoBarriers) {
  SiluMulPiece<Float32>(params);
}
TANDEM_KERNEL(silu_mul_bf16, SiluMulParams, kRowThreads, kNoBarriers) {
  SiluMulPiece<BFloat16>(params);
}
TANDEM_KERNEL(silu_mul_f16, SiluMulParams, kRowThreads, kNoBarriers) { SiluMulPiece<Half>(params); }

// Grid [rows].
TANDEM_KERNEL(add_bias, AddBiasParams, kRowThreads, kNoBarriers) {
  float* out = params.out + int64_t{BlockX()} * params.width;
  for (int i = ThreadIndex(); i < params.width; i += BlockThreads()) {
    out[i] += params.bias[i];
  }
}

// Grid [rows, heads of Q and K]; one warp: a lane takes the pairs (d, d + half), d = lane and every
// 32 further. head_dim is even and at most 256.
TANDEM_KERNEL(rope, RopeParams, kWarpThreads, kNoBarriers) { RotateHead(params, 1.0f, nullptr); }
TANDEM_KERNEL(rope_norm, RopeParams, kWarpThreads, kBarriers) {
  const bool is_q = BlockY() < params.num_q_heads;
  const int half = params.head_dim / 2;
  const float* values = HeadOf(params);
  float sum = 0.0f;
  for (int d = Lane(); d < half; d += kWarpThreads) {
    sum += values[d] * values[d] + values[d + half] * values[d + half];
  }
  const float mean = WarpSum(sum) / static_cast<float>(params.head_dim);
  RotateHead(params, RSqrt(mean + params.eps), is_q ? params.q_norm : params.k_norm);
}

}  // namespace tandem::gpu_worker::ops::cuda
