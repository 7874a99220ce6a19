#include "gpu_worker/ops/pseudo_sampling.h"

#include <algorithm>
#include <cmath>

#include "gpu_worker/ops/philox.h"

namespace tandem::gpu_worker {

SampledToken PseudoSample(const SampleRequest& request, int32_t vocab_size) {
  const double draw = UniformAt(request.params->seed, request.output_tokens.size());
  auto token = static_cast<int32_t>(draw * vocab_size);
  const auto forbidden = [&request](int32_t candidate) {
    return std::find(request.forbidden_tokens.begin(), request.forbidden_tokens.end(), candidate) !=
           request.forbidden_tokens.end();
  };
  for (size_t tries = 0; tries < request.forbidden_tokens.size() && forbidden(token); ++tries) {
    token = (token + 1) % vocab_size;
  }
  const auto allowed = [&request](int32_t candidate) {
    const auto place = static_cast<size_t>(candidate);
    return request.allowed_tokens.empty() ||
           (place / 32 < request.allowed_tokens.size() &&
            (request.allowed_tokens[place / 32] >> (place % 32) & 1u) != 0);
  };
  const auto next = [&](bool heed_forbidden) {
    for (int32_t i = 0; i < vocab_size; ++i) {
      const int32_t candidate = (token + i) % vocab_size;
      if (allowed(candidate) && !(heed_forbidden && forbidden(candidate))) {
        return candidate;
      }
    }
    return -1;
  };
  if (!request.allowed_tokens.empty()) {
    const int32_t free = next(/*heed_forbidden=*/true);
    token = free >= 0 ? free : std::max(next(/*heed_forbidden=*/false), 0);
  }
  SampledToken sampled;
  sampled.token = request.allowed_tokens.empty() && forbidden(token) ? 0 : token;
  if (request.num_logprobs >= 0) {
    sampled.logprobs = PseudoLogprobs(sampled.token, request.num_logprobs, vocab_size);
  }
  return sampled;
}

TokenLogprobs PseudoLogprobs(int32_t token, int32_t num_top, int32_t vocab_size) {
  const auto logprob = static_cast<float>(-std::log(static_cast<double>(vocab_size)));
  TokenLogprobs out;
  out.chosen = {token, logprob, 1};
  for (int32_t id = 0; id < std::min(num_top, vocab_size); ++id) {
    out.top.push_back({id, logprob, 1});
  }
  return out;
}

}  // namespace tandem::gpu_worker
