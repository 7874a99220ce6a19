#include "tests/common/attention_kernels/paged_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/bfloat16.h"

namespace tandem::attention {
namespace {

constexpr int32_t kLayers = 2;
constexpr int32_t kLayer = 1;

std::vector<float> Normal(size_t count, float magnitude, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, magnitude);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

}  // namespace

std::string Describe(const CaseShape& shape) {
  return absl::StrCat("kv ", DTypeName(shape.kv_dtype), " q ", DTypeName(shape.q_dtype), " heads ",
                      shape.kv_heads, "x", shape.group, " head_dim ", shape.head_dim, " block ",
                      shape.block_tokens, " tokens ", shape.tokens, " seed ", shape.seed);
}

PagedCase::PagedCase(const CaseShape& shape)
    : shape_(shape),
      geometry_{shape.kv_dtype, kLayers, shape.kv_heads, shape.head_dim, shape.block_tokens} {
  std::mt19937_64 random(shape.seed);
  const auto blocks =
      static_cast<size_t>((shape.tokens + shape.block_tokens - 1) / shape.block_tokens);
  for (size_t i = 0; i < blocks + 2; ++i) {
    table_.push_back(static_cast<int32_t>(i));
  }
  std::shuffle(table_.begin(), table_.end(), random);
  pool_.assign((blocks + 2) * geometry_.block_bytes(), std::byte{0xff});  // NaN in every dtype
  const auto row = static_cast<size_t>(shape.kv_heads * shape.head_dim);
  for (int64_t token = 0; token < shape.tokens; ++token) {
    const std::vector<float> k = Normal(row, 1.0f, random);
    Store(token, k, Normal(row, 1.0f, random));
  }
  SetQuery(Normal(static_cast<size_t>(num_q() * shape.head_dim), shape.q_magnitude, random));
}

void PagedCase::Store(int64_t token, const std::vector<float>& k, const std::vector<float>& v) {
  const auto block = static_cast<size_t>(token / shape_.block_tokens);
  kv::StoreToken(geometry_, pool_.data() + geometry_.LayerOffset(table_[block], kLayer),
                 static_cast<int32_t>(token % shape_.block_tokens),
                 {k.data(), v.data(), DType::kFloat32});
}

void PagedCase::SetQuery(const std::vector<float>& q) {
  q_ = q;
  q16_.resize(q.size());
  if (shape_.q_dtype == DType::kFloat32) {
    return;
  }
  GetStoreRow(Isa::kScalar)(q.data(), q.size(), shape_.q_dtype, q16_.data());
  for (size_t i = 0; i < q.size(); ++i) {
    q_[i] = shape_.q_dtype == DType::kBFloat16 ? base::BFloat16ToFloat(q16_[i])
                                               : base::HalfToFloat(q16_[i]);
  }
}

SegmentArgs PagedCase::Args(int64_t first, int64_t count) {
  SegmentArgs args;
  args.pool = pool_.data();
  args.block_table = table_.data();
  args.layer = kLayer;
  args.first_token = first;
  args.num_tokens = count;
  args.kv_head_end = shape_.kv_heads;
  args.group_size = shape_.group;
  args.q = shape_.q_dtype == DType::kFloat32 ? static_cast<const void*>(q_.data()) : q16_.data();
  args.q_dtype = shape_.q_dtype;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  out_.assign(q_.size(), std::numeric_limits<float>::quiet_NaN());
  lse_.assign(static_cast<size_t>(num_q()), std::numeric_limits<float>::quiet_NaN());
  args.out = out_.data();
  args.log_sum_exp = lse_.data();
  return args;
}

void PagedCase::Run(AttendSegmentFn attend, int64_t first, int64_t count) {
  attend(geometry_, Args(first, count));
}

void PagedCase::Reference(int64_t first, int64_t count, std::vector<double>* out,
                          std::vector<double>* lse) {
  const auto dim = static_cast<size_t>(shape_.head_dim);
  const size_t row = static_cast<size_t>(shape_.kv_heads) * dim;
  const auto tokens = static_cast<size_t>(count);
  std::vector<float> k(tokens * row);
  std::vector<float> v(tokens * row);
  for (size_t i = 0; i < tokens; ++i) {
    const int64_t token = first + static_cast<int64_t>(i);
    const auto block = static_cast<size_t>(token / shape_.block_tokens);
    kv::LoadToken(geometry_, pool_.data() + geometry_.LayerOffset(table_[block], kLayer),
                  static_cast<int32_t>(token % shape_.block_tokens), &k[i * row], &v[i * row]);
  }
  out->assign(q_.size(), 0.0);
  lse->assign(static_cast<size_t>(num_q()), 0.0);
  const double scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  std::vector<double> scores(tokens);
  for (size_t head = 0; head < static_cast<size_t>(num_q()); ++head) {
    const size_t kv = head / static_cast<size_t>(shape_.group) * dim;
    for (size_t i = 0; i < tokens; ++i) {
      double dot = 0.0;
      for (size_t d = 0; d < dim; ++d) {
        dot += static_cast<double>(q_[head * dim + d]) * static_cast<double>(k[i * row + kv + d]);
      }
      scores[i] = dot * scale;
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (size_t i = 0; i < tokens; ++i) {
      const double p = std::exp(scores[i] - top);
      total += p;
      for (size_t d = 0; d < dim; ++d) {
        (*out)[head * dim + d] += p * static_cast<double>(v[i * row + kv + d]);
      }
    }
    for (size_t d = 0; d < dim; ++d) {
      (*out)[head * dim + d] /= total;
    }
    (*lse)[head] = top + std::log(total);
  }
}

double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  double largest = 0.0;
  double error = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) {
      return std::numeric_limits<double>::infinity();
    }
    largest = std::max(largest, std::abs(b[i]));
    error = std::max(error, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return error / largest;
}

}  // namespace tandem::attention
