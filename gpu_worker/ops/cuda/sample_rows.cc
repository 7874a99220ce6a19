#include "gpu_worker/ops/cuda/sample_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr float kLowestExponent = -87.0f;  // as the sampler on the host

bool IsAllowed(std::span<const uint32_t> allowed, int32_t token) {
  const auto word = static_cast<size_t>(token) / 32;
  return word < allowed.size() && (allowed[word] >> (token % 32) & 1u) != 0;
}

using Edits = std::map<int32_t, TokenEdit>;

Edits EditsOf(const SampleRequest& request, int32_t vocab) {
  Edits edits;
  const auto edit_of = [&](int32_t token) -> TokenEdit* {
    return token >= 0 && token < vocab ? &edits[token] : nullptr;
  };
  for (const auto& [token, bias] : request.params->logit_bias) {
    if (TokenEdit* edit = edit_of(token)) {
      edit->bias += bias;
    }
  }
  for (const int32_t token : request.forbidden_tokens) {
    if (TokenEdit* edit = edit_of(token)) {
      edit->is_forbidden = 1;
    }
  }
  const bool counts = request.params->repetition_penalty != 1.0f ||
                      request.params->frequency_penalty != 0.0f ||
                      request.params->presence_penalty != 0.0f;
  if (!counts) {
    return edits;
  }
  for (const int32_t token : request.prompt_tokens) {
    if (TokenEdit* edit = edit_of(token)) {
      edit->is_seen = 1;
    }
  }
  for (const int32_t token : request.output_tokens) {
    if (TokenEdit* edit = edit_of(token)) {
      edit->is_seen = 1;
      ++edit->output_count;
    }
  }
  return edits;
}

// Lifts the bans where the mask leaves nothing else.
void LeaveAToken(std::span<const uint32_t> allowed, Edits& edits) {
  int64_t left = 0;
  for (const uint32_t word : allowed) {
    left += std::popcount(word);
  }
  for (const auto& [token, edit] : edits) {
    left -= edit.is_forbidden != 0 && IsAllowed(allowed, token) ? 1 : 0;
  }
  if (left > 0) {
    return;
  }
  for (auto& [token, edit] : edits) {
    edit.is_forbidden = 0;
  }
}

SampleRowParams RowOf(const SampleRequest& request) {
  const SamplingParams& params = *request.params;
  SampleRowParams row;
  row.seed = params.seed;
  row.position = request.output_tokens.size();
  row.temperature = params.temperature;
  row.top_p = params.top_p;
  if (params.min_p > 0.0f) {
    row.lowest_exponent = std::max(kLowestExponent, std::log(std::min(params.min_p, 1.0f)));
  }
  row.top_k = params.top_k;
  row.repetition_penalty = params.repetition_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.presence_penalty = params.presence_penalty;
  return row;
}

}  // namespace

SampleBatch MakeSampleBatch(std::span<const SampleRequest> requests, int32_t vocab) {
  SampleBatch batch;
  for (const SampleRequest& request : requests) {
    SampleRowParams row = RowOf(request);
    Edits edits = EditsOf(request, vocab);
    int64_t mask_begin = -1;
    if (!request.allowed_tokens.empty()) {
      LeaveAToken(request.allowed_tokens, edits);
      mask_begin = static_cast<int64_t>(batch.masks.size());
      batch.masks.insert(batch.masks.end(), request.allowed_tokens.begin(),
                         request.allowed_tokens.end());
      row.num_allowed_words = static_cast<int32_t>(request.allowed_tokens.size());
    }
    row.first_edit = static_cast<int32_t>(batch.edits.size());
    row.num_edits = static_cast<int32_t>(edits.size());
    for (const auto& [token, edit] : edits) {
      batch.edits.push_back(edit);
      batch.edits.back().token = token;
    }
    batch.rows.push_back(row);
    batch.mask_begins.push_back(mask_begin);
  }
  return batch;
}

}  // namespace tandem::gpu_worker::ops::cuda
