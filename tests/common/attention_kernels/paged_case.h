#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention_kernels/paged_decode.h"

namespace tandem::attention {

struct CaseShape {
  DType kv_dtype = DType::kFloat32;
  DType q_dtype = DType::kFloat32;
  int32_t kv_heads = 2;
  int32_t group = 1;
  int32_t head_dim = 64;
  int32_t block_tokens = 128;
  int64_t tokens = 100;
  float q_magnitude = 1.0f;
  uint64_t seed = 1;
};

std::string Describe(const CaseShape& shape);

// One sequence in a pool whose unused rows and blocks are NaN, with blocks in random order.
class PagedCase {
 public:
  explicit PagedCase(const CaseShape& shape);

  // Runs `attend` over [first, first + count) for the given KV heads; results in out() and lse().
  void Run(AttendSegmentFn attend, int64_t first, int64_t count);
  void Run(AttendSegmentFn attend) { Run(attend, 0, shape_.tokens); }
  // The same in float64, from the stored (rounded) values.
  void Reference(int64_t first, int64_t count, std::vector<double>* out, std::vector<double>* lse);

  // Overwrites one token's K or V of every head.
  void Store(int64_t token, const std::vector<float>& k, const std::vector<float>& v);
  void SetQuery(const std::vector<float>& q);
  SegmentArgs Args(int64_t first, int64_t count);

  const kv::PoolGeometry& geometry() const { return geometry_; }
  std::vector<float>& out() { return out_; }
  std::vector<float>& lse() { return lse_; }
  int32_t num_q() const { return shape_.kv_heads * shape_.group; }

 private:
  CaseShape shape_;
  kv::PoolGeometry geometry_;
  std::vector<std::byte> pool_;
  std::vector<int32_t> table_;
  std::vector<float> q_;  // as the kernel sees it, in float32
  std::vector<uint16_t> q16_;
  std::vector<float> out_;
  std::vector<float> lse_;
};

// Largest |a - b| relative to the largest |b|; infinity when a value is not finite.
double RelativeError(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace tandem::attention
