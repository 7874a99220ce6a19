#include "gpu_worker/ops/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/ops/fast_exp.h"
#include "gpu_worker/ops/philox.h"

namespace tandem::gpu_worker {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kGreedyTemperature = 1e-5f;
// Below this, e^x leaves the normal floats; such a token's chance is under 1e-37.
constexpr float kLowestExponent = -87.0f;
constexpr size_t kBlock = 64;  // elements a block of the two-level scans
constexpr size_t kLanes = 16;  // independent accumulators: lets the compiler vectorise reductions

// NaN is skipped; minus infinity when nothing else is there.
float MaxOf(std::span<const float> values) {
  float lanes[kLanes];
  std::fill(std::begin(lanes), std::end(lanes), kNegativeInfinity);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  for (; i < values.size(); ++i) {
    lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  }
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

double SumOf(std::span<const float> values) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(values[i + lane]);
    }
  }
  for (; i < values.size(); ++i) {
    lanes[0] += static_cast<double>(values[i]);
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

// The k-th largest value, 1 <= k <= size. The k-th largest of the blocks' maxima is a lower bound
// of it, so all but a few values fall out in one pass.
float KthLargest(std::span<const float> values, size_t k) {
  const size_t num_blocks = (values.size() + kBlock - 1) / kBlock;
  float bound = kNegativeInfinity;
  if (k <= num_blocks) {
    std::vector<float> maxima(num_blocks);
    for (size_t block = 0; block < num_blocks; ++block) {
      const size_t first = block * kBlock;
      maxima[block] = MaxOf(values.subspan(first, std::min(kBlock, values.size() - first)));
    }
    std::nth_element(maxima.begin(), maxima.begin() + static_cast<ptrdiff_t>(k - 1), maxima.end(),
                     std::greater<>());
    bound = maxima[k - 1];
  }
  std::vector<float> candidates;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = values.subspan(first, std::min(kBlock, values.size() - first));
    if (MaxOf(block) < bound) {
      continue;
    }
    for (const float value : block) {
      if (value >= bound) {  // false for NaN
        candidates.push_back(value);
      }
    }
  }
  if (candidates.size() < k) {
    return kNegativeInfinity;
  }
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(k - 1),
                   candidates.end(), std::greater<>());
  return candidates[k - 1];
}

bool InVocabulary(int32_t token, std::span<const float> logits) {
  return token >= 0 && static_cast<size_t>(token) < logits.size();
}

void RemoveNotFinite(std::span<float> logits) {
  for (float& logit : logits) {
    logit = logit >= kNegativeInfinity ? logit : kNegativeInfinity;
    logit = logit < kLargest ? logit : kLargest;
  }
}

void ApplyRepetitionPenalty(std::span<float> logits, const SampleRequest& request) {
  const float penalty = request.params->repetition_penalty;
  std::vector<bool> seen(logits.size());
  for (const std::span<const int32_t> tokens : {request.prompt_tokens, request.output_tokens}) {
    for (const int32_t token : tokens) {
      if (!InVocabulary(token, logits) || seen[static_cast<size_t>(token)]) {
        continue;
      }
      seen[static_cast<size_t>(token)] = true;
      float& logit = logits[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
}

void ApplyCountPenalties(std::span<float> logits, const SampleRequest& request) {
  absl::flat_hash_map<int32_t, int32_t> counts;
  for (const int32_t token : request.output_tokens) {
    if (InVocabulary(token, logits)) {
      ++counts[token];
    }
  }
  for (const auto& [token, count] : counts) {
    logits[static_cast<size_t>(token)] -=
        request.params->frequency_penalty * static_cast<float>(count) +
        request.params->presence_penalty;
  }
}

bool IsAllowed(std::span<const uint32_t> allowed, size_t token) {
  return token / 32 < allowed.size() && (allowed[token / 32] >> (token % 32) & 1u) != 0;
}

void RemoveNotAllowed(std::span<float> logits, std::span<const uint32_t> allowed) {
  for (size_t first = 0; first < logits.size(); first += 32) {
    const uint32_t word = first / 32 < allowed.size() ? allowed[first / 32] : 0;
    if (word == ~0u) {
      continue;
    }
    const size_t count = std::min<size_t>(32, logits.size() - first);
    for (size_t bit = 0; bit < count; ++bit) {
      logits[first + bit] = (word >> bit & 1u) != 0 ? logits[first + bit] : kNegativeInfinity;
    }
  }
}

// Whether a token is allowed that is not forbidden.
bool LeavesAny(const SampleRequest& request) {
  int64_t left = 0;
  for (const uint32_t word : request.allowed_tokens) {
    left += std::popcount(word);
  }
  std::vector<int32_t> forbidden(request.forbidden_tokens.begin(), request.forbidden_tokens.end());
  std::sort(forbidden.begin(), forbidden.end());
  forbidden.erase(std::unique(forbidden.begin(), forbidden.end()), forbidden.end());
  for (const int32_t token : forbidden) {
    left -= token >= 0 && IsAllowed(request.allowed_tokens, static_cast<size_t>(token)) ? 1 : 0;
  }
  return left > 0;
}

// Where no logit speaks for any allowed token.
int32_t FirstAllowed(std::span<const uint32_t> allowed) {
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (allowed[i] != 0) {
      return static_cast<int32_t>(i * 32) + std::countr_zero(allowed[i]);
    }
  }
  return 0;
}

void ApplyBiasAndPenalties(std::span<float> logits, const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  std::span<const int32_t> forbidden = request.forbidden_tokens;
  if (!request.allowed_tokens.empty()) {
    RemoveNotAllowed(logits, request.allowed_tokens);
    if (!forbidden.empty() && !LeavesAny(request)) {
      forbidden = {};
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (InVocabulary(token, logits)) {
      logits[static_cast<size_t>(token)] += bias;
    }
  }
  for (const int32_t token : forbidden) {
    if (InVocabulary(token, logits)) {
      logits[static_cast<size_t>(token)] = kNegativeInfinity;
    }
  }
  if (params.repetition_penalty != 1.0f && params.repetition_penalty > 0.0f) {
    ApplyRepetitionPenalty(logits, request);
  }
  if (params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f) {
    ApplyCountPenalties(logits, request);
  }
}

int32_t FirstEqual(std::span<const float> logits, float value) {
  const auto found = std::find(logits.begin(), logits.end(), value);
  return found == logits.end() ? 0 : static_cast<int32_t>(found - logits.begin());
}

// Turns logits into weights in [0, 1], the best token's being 1, and drops what min_p and top_k
// drop.
void ToWeights(std::span<float> logits, float max, const SamplingParams& params) {
  float lowest_logit = kNegativeInfinity;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
    lowest_logit = KthLargest(logits, static_cast<size_t>(params.top_k));
  }
  const float lowest_exponent =
      params.min_p > 0.0f ? std::max(kLowestExponent, std::log(std::min(params.min_p, 1.0f)))
                          : kLowestExponent;
  const float inverse_temperature = 1.0f / params.temperature;
  for (float& logit : logits) {
    const float exponent = (logit - max) * inverse_temperature;
    // Clamped before, not chosen after: the loop stays free of branches.
    const float weight = BoundedExp(exponent > kLowestExponent ? exponent : kLowestExponent);
    // Multiplied and joined bitwise, for the same reason.
    const int is_kept = (logit >= lowest_logit) & (exponent >= lowest_exponent);
    logit = weight * static_cast<float>(is_kept);
  }
}

// A positive float's upper bits (exponent and five bits of mantissa) grow with it.
constexpr uint32_t kBucketShift = 18;
constexpr size_t kNumBuckets = (0x3f800000u >> kBucketShift) + 1;  // weights are at most 1

size_t BucketOf(float weight) {
  return std::min<size_t>(std::bit_cast<uint32_t>(weight) >> kBucketShift, kNumBuckets - 1);
}

// Keeps the smallest set of best tokens whose share of the weight reaches `top_p`. Buckets of close
// weights find where the sum crosses; only that bucket is sorted.
void KeepTopP(std::span<float> weights, double top_p) {
  std::vector<double> buckets(kNumBuckets);
  for (const float weight : weights) {
    if (weight > 0.0f) {  // most are 0 after top_k, and would queue up for one bucket
      buckets[BucketOf(weight)] += static_cast<double>(weight);
    }
  }
  double total = 0;
  for (const double bucket : buckets) {
    total += bucket;
  }
  const double wanted = top_p * total;
  double sum = 0;
  size_t crossing = kNumBuckets - 1;
  while (crossing > 0 && sum + buckets[crossing] < wanted) {
    sum += buckets[crossing--];
  }
  std::vector<std::pair<float, int32_t>> members;  // weight, minus the token id
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t bucket = BucketOf(weights[i]);
    if (bucket == crossing && weights[i] > 0.0f) {
      members.emplace_back(weights[i], -static_cast<int32_t>(i));
    } else if (bucket < crossing) {
      weights[i] = 0.0f;
    }
  }
  std::sort(members.begin(), members.end(), std::greater<>());
  for (size_t i = 0; i < members.size(); ++i) {
    // The best token of all stays even when top_p is 0.
    const bool is_best = i == 0 && sum == 0.0;
    if (sum >= wanted && !is_best) {
      weights[static_cast<size_t>(-members[i].second)] = 0.0f;
    }
    sum += static_cast<double>(members[i].first);
  }
}

int32_t LastPositive(std::span<const float> weights) {
  size_t i = weights.size();
  while (i > 1 && !(weights[i - 1] > 0)) {
    --i;
  }
  return i == 0 ? 0 : static_cast<int32_t>(i - 1);
}

// The token at which the running sum of the weights passes `uniform` of their total.
int32_t Draw(std::span<const float> weights, double uniform) {
  const size_t num_blocks = (weights.size() + kBlock - 1) / kBlock;
  std::vector<double> sums(num_blocks);
  double total = 0;
  for (size_t block = 0; block < num_blocks; ++block) {
    const size_t first = block * kBlock;
    sums[block] = SumOf(weights.subspan(first, std::min(kBlock, weights.size() - first)));
    total += sums[block];
  }
  double left = uniform * total;
  size_t block = 0;
  while (block < num_blocks && left >= sums[block]) {
    left -= sums[block++];
  }
  const size_t end = std::min(weights.size(), (block + 1) * kBlock);
  for (size_t i = block * kBlock; i < end; ++i) {
    const double weight = static_cast<double>(weights[i]);
    if (left < weight) {
      return static_cast<int32_t>(i);
    }
    left -= weight;
  }
  return LastPositive(weights.first(end));  // rounding pushed the target past the end
}

int32_t Choose(std::span<float> logits, const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  ApplyBiasAndPenalties(logits, request);
  RemoveNotFinite(logits);
  const float max = MaxOf(logits);
  if (max == kNegativeInfinity) {
    return FirstAllowed(request.allowed_tokens);
  }
  if (!(params.temperature >= kGreedyTemperature)) {
    return FirstEqual(logits, max);
  }
  ToWeights(logits, max, params);
  if (params.top_p < 1.0f) {
    KeepTopP(logits, static_cast<double>(params.top_p));
  }
  return Draw(logits, UniformAt(params.seed, request.output_tokens.size()));
}

// Natural logarithm of the sum of e^logit.
double LogSumExp(std::span<const float> logits, float max) {
  float weights[kBlock];
  double sum = 0;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t count = std::min(kBlock, logits.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const float exponent = std::min(logits[first + i] - max, 0.0f);  // an infinite one
      const float weight = BoundedExp(exponent > kLowestExponent ? exponent : kLowestExponent);
      weights[i] = exponent > kLowestExponent ? weight : 0.0f;
    }
    sum += SumOf(std::span<const float>(weights, count));
  }
  return static_cast<double>(max) + std::log(sum);
}

using Ranked = std::vector<std::pair<float, int32_t>>;  // logit, minus the token id

// The `count` largest, best first, lower ids first on ties.
Ranked BestOf(std::span<const float> logits, size_t count) {
  const float lowest = KthLargest(logits, count);
  Ranked best;
  std::vector<int32_t> tied;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t end = std::min(first + kBlock, logits.size());
    if (MaxOf(logits.subspan(first, end - first)) < lowest) {
      continue;
    }
    for (size_t i = first; i < end; ++i) {
      const float logit = logits[i] >= kNegativeInfinity ? logits[i] : kNegativeInfinity;
      if (logit > lowest) {
        best.emplace_back(logit, -static_cast<int32_t>(i));
      } else if (logit == lowest && tied.size() < count) {
        tied.push_back(static_cast<int32_t>(i));
      }
    }
  }
  for (size_t i = 0; i < tied.size() && best.size() < count; ++i) {
    best.emplace_back(lowest, -tied[i]);
  }
  std::sort(best.begin(), best.end(), std::greater<>());
  return best;
}

}  // namespace

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t token, int32_t num_top) {
  const float max = std::min(MaxOf(logits), kLargest);
  const double log_sum = max == kNegativeInfinity ? 0.0 : LogSumExp(logits, max);
  const auto logprob_of = [&](float logit) {
    return logit >= kNegativeInfinity
               ? static_cast<float>(static_cast<double>(std::min(logit, kLargest)) - log_sum)
               : kNegativeInfinity;
  };
  const float chosen =
      InVocabulary(token, logits) ? logits[static_cast<size_t>(token)] : kNegativeInfinity;
  int32_t larger = 0;
  const float compared = chosen >= kNegativeInfinity ? chosen : kNegativeInfinity;
  for (const float logit : logits) {
    larger += logit > compared ? 1 : 0;
  }
  TokenLogprobs result;
  result.chosen = {token, logprob_of(chosen), larger + 1};
  if (num_top <= 0 || logits.empty()) {
    return result;
  }
  const Ranked best = BestOf(logits, std::min(static_cast<size_t>(num_top), logits.size()));
  int32_t rank = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    rank = i > 0 && best[i].first == best[i - 1].first ? rank : static_cast<int32_t>(i) + 1;
    result.top.push_back({-best[i].second, logprob_of(best[i].first), rank});
  }
  return result;
}

SampledToken SampleRow(std::span<float> logits, const SampleRequest& request) {
  SampledToken sampled;
  if (request.num_logprobs < 0) {
    sampled.token = Choose(logits, request);
    return sampled;
  }
  if (!request.allowed_tokens.empty()) {
    RemoveNotAllowed(logits, request.allowed_tokens);
  }
  const std::vector<float> raw(logits.begin(), logits.end());
  sampled.token = Choose(logits, request);
  sampled.logprobs = LogprobsOf(raw, sampled.token, request.num_logprobs);
  return sampled;
}

bool IsPlainGreedy(const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  const bool greedy = !(params.temperature >= kGreedyTemperature);
  const bool no_penalty = params.repetition_penalty == 1.0f && params.presence_penalty == 0.0f &&
                          params.frequency_penalty == 0.0f;
  return greedy && no_penalty && params.logit_bias.empty() && request.forbidden_tokens.empty() &&
         request.num_logprobs < 0 && request.constraint == nullptr &&
         request.allowed_tokens.empty();
}

}  // namespace tandem::gpu_worker
