#include "gpu_worker/ops/cuda/sample_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr float kLowestExponent = -87.0f;  // as the sampler on the host

bool IsAllowed(std::span<const uint32_t> allowed, int32_t token) {
  const auto word = static_cast<size_t>(token) / 32;
  return word < allowed.size() && (allowed[word] >> (token % 32) & 1u) != 0;
}

// A row's edits, found by token without hashing: penalties look at every token of a long prompt.
class Edits {
 public:
  explicit Edits(int32_t vocab) : index_(static_cast<size_t>(vocab), -1) {}

  // Null outside of the vocabulary.
  TokenEdit* Of(int32_t token) {
    if (token < 0 || static_cast<size_t>(token) >= index_.size()) {
      return nullptr;
    }
    int32_t& index = index_[static_cast<size_t>(token)];
    if (index < 0) {
      index = static_cast<int32_t>(edits_.size());
      edits_.emplace_back().token = token;
    }
    return &edits_[static_cast<size_t>(index)];
  }
  std::vector<TokenEdit>& all() { return edits_; }
  void Clear() {
    for (const TokenEdit& edit : edits_) {
      index_[static_cast<size_t>(edit.token)] = -1;
    }
    edits_.clear();
  }

 private:
  std::vector<int32_t> index_;  // of edits_, by token
  std::vector<TokenEdit> edits_;
};

void FillEdits(const SampleRequest& request, Edits& edits) {
  for (const auto& [token, bias] : request.params->logit_bias) {
    if (TokenEdit* edit = edits.Of(token)) {
      edit->bias += bias;
    }
  }
  for (const int32_t token : request.forbidden_tokens) {
    if (TokenEdit* edit = edits.Of(token)) {
      edit->is_forbidden = 1;
    }
  }
  const bool repeats = request.params->repetition_penalty != 1.0f;
  const bool counts =
      request.params->frequency_penalty != 0.0f || request.params->presence_penalty != 0.0f;
  if (repeats) {
    for (const int32_t token : request.prompt_tokens) {
      if (TokenEdit* edit = edits.Of(token)) {
        edit->is_seen = 1;
      }
    }
  }
  if (repeats || counts) {
    for (const int32_t token : request.output_tokens) {
      if (TokenEdit* edit = edits.Of(token)) {
        edit->is_seen = 1;
        ++edit->output_count;
      }
    }
  }
}

// Lifts the bans where the mask leaves nothing else.
void LeaveAToken(std::span<const uint32_t> allowed, std::vector<TokenEdit>& edits) {
  int64_t left = 0;
  for (const uint32_t word : allowed) {
    left += std::popcount(word);
  }
  for (const TokenEdit& edit : edits) {
    left -= edit.is_forbidden != 0 && IsAllowed(allowed, edit.token) ? 1 : 0;
  }
  if (left > 0) {
    return;
  }
  for (TokenEdit& edit : edits) {
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

void SampleBatch::PointToMasks(const uint32_t* device_masks) {
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].allowed = mask_begins[i] >= 0 ? device_masks + mask_begins[i] : nullptr;
  }
}

SampleBatch MakeSampleBatch(std::span<const TokenChoice> choices, int32_t vocab) {
  SampleBatch batch;
  Edits edits(vocab);
  for (const TokenChoice& choice : choices) {
    SampleRowParams row;
    int64_t mask_begin = -1;
    row.given_token = choice.token;
    if (choice.request != nullptr) {
      const SampleRequest& request = *choice.request;
      row = RowOf(request);
      FillEdits(request, edits);
      if (!request.allowed_tokens.empty()) {
        LeaveAToken(request.allowed_tokens, edits.all());
        mask_begin = static_cast<int64_t>(batch.masks.size());
        batch.masks.insert(batch.masks.end(), request.allowed_tokens.begin(),
                           request.allowed_tokens.end());
        row.num_allowed_words = static_cast<int32_t>(request.allowed_tokens.size());
      }
    }
    row.num_logprobs = choice.num_logprobs;
    row.first_edit = static_cast<int32_t>(batch.edits.size());
    row.num_edits = static_cast<int32_t>(edits.all().size());
    batch.edits.insert(batch.edits.end(), edits.all().begin(), edits.all().end());
    edits.Clear();
    batch.rows.push_back(row);
    batch.mask_begins.push_back(mask_begin);
    batch.max_logprobs = std::max(batch.max_logprobs, choice.num_logprobs);
  }
  return batch;
}

TokenLogprobs LogprobsFrom(const LogprobEntry* entries, int32_t num_top) {
  const auto entry = [&](int32_t i) {
    return TokenLogprob{entries[i].token, entries[i].logprob, entries[i].rank};
  };
  TokenLogprobs logprobs;
  logprobs.chosen = entry(0);
  for (int32_t i = 1; i <= num_top && entries[i].token >= 0; ++i) {
    logprobs.top.push_back(entry(i));
  }
  return logprobs;
}

}  // namespace tandem::gpu_worker::ops::cuda
