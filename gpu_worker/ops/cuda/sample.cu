#include "gpu_worker/ops/cuda/best.cuh"

// Choosing tokens from logits as gpu_worker/ops/sampling.h does, and logprobs. Grid [rows].
//
// Weights are summed as integers of 2^-40: such sums do not depend on their order, so that the same
// row and seed always give the same token although threads add as they come.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kSampleThreads = 512;
constexpr int kWarps = kSampleThreads / kWarpThreads;
constexpr int kBins = 256;
constexpr float kLargest = 3.402823466e38f;
constexpr float kLowestExponent = -87.0f;
constexpr float kGreedyTemperature = 1e-5f;
constexpr float kUnit = 1099511627776.0f;  // 2^40

using Sum = unsigned long long;

struct SampleShared {
  Shared<float> logits;    // [kWarps]
  Shared<int32_t> tokens;  // [kWarps]
  Shared<Sum> sums;        // [kSampleThreads]
  Shared<Sum> found;       // [2]
};

// Philox 4x32 with 10 rounds: gpu_worker/ops/philox.h.
TANDEM_DEVICE double UniformAt(uint64_t seed, uint64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                         0};
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t first = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    const uint32_t third = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[0] = first;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = third;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * (1.0 / 9007199254740992.0);  // 2^-53
}

// e^x for x in [-87, 0]: gpu_worker/ops/fast_exp.h.
TANDEM_DEVICE float ExpOfNonPositive(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = AddRounded(MulRounded(x, kLog2E), kRound);
  const float n = AddRounded(shifted, -kRound);
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float sum = 1.0f / 5040.0f;
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  return sum * FloatOf(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

TANDEM_DEVICE bool IsAllowed(const SampleRowParams& row, int token) {
  return row.allowed == nullptr || (token / 32 < row.num_allowed_words &&
                                    (row.allowed[token / 32] >> (token % 32) & 1u) != 0);
}

TANDEM_DEVICE float Edited(const SampleRowParams& row, const TokenEdit& edit, float logit) {
  logit += edit.bias;
  if (edit.is_forbidden != 0) {
    logit = FloatOf(0xff800000u);
  }
  if (edit.is_seen != 0 && row.repetition_penalty > 0.0f) {
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  }
  if (edit.output_count > 0) {
    logit -= row.frequency_penalty * static_cast<float>(edit.output_count) + row.presence_penalty;
  }
  return logit;
}

// NaN as minus infinity, plus infinity as the largest number.
TANDEM_DEVICE float Finite(float logit) {
  logit = logit >= FloatOf(0xff800000u) ? logit : FloatOf(0xff800000u);
  return logit < kLargest ? logit : kLargest;
}

// Copies the row to `out` with everything that a request asks of single tokens; all threads.
TANDEM_DEVICE void PrepareLogits(const SampleParams& params, const SampleRowParams& row,
                                 const float* in, float* out) {
  for (int i = ThreadIndex(); i < params.rows.vocab; i += kSampleThreads) {
    out[i] = IsAllowed(row, i) ? in[i] : FloatOf(0xff800000u);
  }
  SyncBlock();
  for (int i = ThreadIndex(); i < row.num_edits; i += kSampleThreads) {
    const TokenEdit edit = params.edits[row.first_edit + i];
    out[edit.token] = Edited(row, edit, out[edit.token]);
  }
  SyncBlock();
}

// Grows with the float.
TANDEM_DEVICE uint32_t OrderOf(float value) {
  const uint32_t bits = BitsOf(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Of keys with amounts: the key at which the amounts, summed from the largest key down, reach what
// is wanted, and the sum before it.
struct Crossing {
  uint32_t key;
  Sum before;
};

// `amount_of(i, &key)`: of token i. wanted > 0 and at most the sum of all amounts.
template <typename AmountOf>
TANDEM_DEVICE Crossing FindCrossing(const SampleShared& shared, int vocab, Sum wanted,
                                    const AmountOf& amount_of) {
  Crossing crossing{0, 0};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = ThreadIndex(); i < kBins; i += kSampleThreads) {
      shared.sums.Store(i, 0);
    }
    SyncBlock();
    for (int i = ThreadIndex(); i < vocab; i += kSampleThreads) {
      uint32_t key = 0;
      const Sum amount = amount_of(i, &key);
      // Of the keys that begin like the one that is looked for.
      if (amount > 0 && (uint64_t{key ^ crossing.key} >> (shift + 8)) == 0) {
        shared.sums.AtomicAdd(static_cast<int>(key >> shift & 0xffu), amount);
      }
    }
    SyncBlock();
    if (ThreadIndex() == 0) {
      Sum before = crossing.before;
      int bin = kBins - 1;
      for (; bin > 0 && before + shared.sums.Load(bin) < wanted; --bin) {
        before += shared.sums.Load(bin);
      }
      shared.found.Store(0, static_cast<Sum>(bin));
      shared.found.Store(1, before);
    }
    SyncBlock();
    crossing.key |= static_cast<uint32_t>(shared.found.Load(0)) << shift;
    crossing.before = shared.found.Load(1);
  }
  return crossing;
}

// The sum of the threads before this one, and of all.
struct Scan {
  Sum before;
  Sum total;
};

TANDEM_DEVICE Scan BlockScan(const SampleShared& shared, Sum mine) {
  SyncBlock();
  shared.sums.Store(ThreadIndex(), mine);
  SyncBlock();
  for (int step = 1; step < kSampleThreads; step *= 2) {
    const Sum left = ThreadIndex() >= step ? shared.sums.Load(ThreadIndex() - step) : 0;
    SyncBlock();
    if (ThreadIndex() >= step) {
      shared.sums.Store(ThreadIndex(), shared.sums.Load(ThreadIndex()) + left);
    }
    SyncBlock();
  }
  return {shared.sums.Load(ThreadIndex()) - mine, shared.sums.Load(kSampleThreads - 1)};
}

// Weights of the tokens that min_p and top_k leave, the best one's being 1.
struct Weights {
  const float* logits;
  float max;
  float inverse_temperature;
  float lowest_exponent;
  float lowest_logit;

  TANDEM_METHOD float Of(int i) const {
    const float exponent = (logits[i] - max) * inverse_temperature;
    const float weight = ExpOfNonPositive(exponent > kLowestExponent ? exponent : kLowestExponent);
    return logits[i] >= lowest_logit && exponent >= lowest_exponent ? weight : 0.0f;
  }
};

TANDEM_DEVICE Sum UnitsOf(float weight) { return static_cast<Sum>(weight * kUnit); }

// Tokens above the border stay, and of those on it the first `ties`.
struct Border {
  uint32_t key;  // bits of a weight
  Sum ties;
};

TANDEM_DEVICE Sum TotalUnits(const SampleShared& shared, const Weights& weights, int vocab) {
  Sum sum = 0;
  for (int i = ThreadIndex(); i < vocab; i += kSampleThreads) {
    sum += UnitsOf(weights.Of(i));
  }
  return BlockScan(shared, sum).total;
}

// The smallest set of best tokens whose share of the weight reaches top_p; the best one always
// stays.
TANDEM_DEVICE Border BorderOf(const SampleShared& shared, const Weights& weights, int vocab,
                              float top_p) {
  if (!(top_p < 1.0f)) {
    return {0, 0};
  }
  const Sum total = TotalUnits(shared, weights, vocab);
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  Sum wanted = share > 1.0 ? static_cast<Sum>(share) : 1;
  wanted += static_cast<double>(wanted) < share ? 1 : 0;
  const Crossing crossing =
      FindCrossing(shared, vocab, wanted < total ? wanted : total, [&](int i, uint32_t* key) {
        const float weight = weights.Of(i);
        *key = BitsOf(weight);
        return UnitsOf(weight);
      });
  const Sum each = UnitsOf(FloatOf(crossing.key));
  return {crossing.key, (wanted - crossing.before + each - 1) / each};
}

// The token at which the running sum of the weights that stay passes `uniform` of their total. Each
// thread has a run of tokens.
TANDEM_DEVICE int Draw(const SampleShared& shared, const Weights& weights, int vocab,
                       const Border& border, double uniform) {
  const int each = (vocab + kSampleThreads - 1) / kSampleThreads;
  const int begin = ThreadIndex() * each;
  const int end = begin + each < vocab ? begin + each : vocab;
  Sum ties = 0;
  for (int i = begin; i < end; ++i) {
    ties += BitsOf(weights.Of(i)) == border.key ? 1 : 0;
  }
  const Sum ties_before = BlockScan(shared, ties).before;
  const auto run = [&](Sum target, int* token) {
    Sum sum = 0;
    Sum tie = ties_before;
    for (int i = begin; i < end; ++i) {
      const float weight = weights.Of(i);
      const bool is_tie = BitsOf(weight) == border.key;
      const bool stays = is_tie ? tie < border.ties : BitsOf(weight) > border.key;
      tie += is_tie ? 1 : 0;
      const Sum units = stays ? UnitsOf(weight) : 0;
      if (units > 0 && sum <= target && target < sum + units) {
        *token = i;
      }
      sum += units;
    }
    return sum;
  };
  int token = -1;
  const Scan scan = BlockScan(shared, run(~Sum{0}, &token));
  auto target = static_cast<Sum>(uniform * static_cast<double>(scan.total));
  target = target < scan.total ? target : scan.total - 1;
  token = -1;
  if (target >= scan.before) {
    run(target - scan.before, &token);
  }
  if (token >= 0) {
    shared.found.Store(0, static_cast<Sum>(token));
  }
  SyncBlock();
  return static_cast<int>(shared.found.Load(0));
}

// The lowest allowed token, where no logit speaks for any.
TANDEM_DEVICE int FirstAllowed(const SampleShared& shared, const SampleRowParams& row, int vocab) {
  Best first = NoBest();
  for (int i = ThreadIndex(); i < vocab; i += kSampleThreads) {
    first = IsAllowed(row, i) ? Better(first, {0.0f, i}) : first;
  }
  first = BlockBest(first, shared.logits, shared.tokens);
  return first.token == kNoToken ? 0 : first.token;
}

TANDEM_DEVICE int Choose(const SampleShared& shared, const SampleParams& params,
                         const SampleRowParams& row, float* logits) {
  Best best = NoBest();
  for (int i = ThreadIndex(); i < params.rows.vocab; i += kSampleThreads) {
    logits[i] = Finite(logits[i]);
    best = logits[i] > best.logit ? Best{logits[i], i} : best;
  }
  best = BlockBest(best, shared.logits, shared.tokens);
  if (best.token == kNoToken) {
    return FirstAllowed(shared, row, params.rows.vocab);
  }
  if (!(row.temperature >= kGreedyTemperature)) {
    return best.token;
  }
  Weights weights{logits, best.logit, 1.0f / row.temperature, row.lowest_exponent,
                  FloatOf(0xff800000u)};
  if (row.top_k > 0 && row.top_k < params.rows.vocab) {
    const Crossing kth = FindCrossing(shared, params.rows.vocab, static_cast<Sum>(row.top_k),
                                      [&](int i, uint32_t* key) {
                                        *key = OrderOf(logits[i]);
                                        return Sum{1};
                                      });
    const uint32_t bits = (kth.key & 0x80000000u) != 0 ? kth.key & 0x7fffffffu : ~kth.key;
    weights.lowest_logit = FloatOf(bits);
  }
  const Border border = BorderOf(shared, weights, params.rows.vocab, row.top_p);
  return Draw(shared, weights, params.rows.vocab, border, UniformAt(row.seed, row.position));
}

// The row's logits with those of tokens that are not allowed as minus infinity.
struct AllowedLogits {
  const float* logits;
  const SampleRowParams* row;
  TANDEM_METHOD float Of(int i) const {
    return IsAllowed(*row, i) ? Finite(logits[i]) : FloatOf(0xff800000u);
  }
};

// Logprobs from a row's logits.
struct LogSoftmax {
  double log_sum;
  TANDEM_METHOD float Of(float logit) const {
    return logit == FloatOf(0xff800000u) ? logit
                                         : static_cast<float>(static_cast<double>(logit) - log_sum);
  }
};

// `best`: of the row, in every thread.
TANDEM_DEVICE LogSoftmax LogSoftmaxOf(const SampleShared& shared, const AllowedLogits& logits,
                                      const Best& best, int vocab) {
  if (best.logit == FloatOf(0xff800000u)) {
    return {0.0};
  }
  Sum units = 0;
  for (int i = ThreadIndex(); i < vocab; i += kSampleThreads) {
    const float exponent = logits.Of(i) - best.logit;
    units += exponent >= kLowestExponent ? UnitsOf(ExpOfNonPositive(exponent)) : 0;
  }
  const double total = static_cast<double>(BlockScan(shared, units).total) / kUnit;
  return {static_cast<double>(best.logit) + LogOf(total)};
}

// The best of the tokens that come after `last`.
TANDEM_DEVICE Best NextBest(const SampleShared& shared, const AllowedLogits& logits,
                            const Best& last, int vocab) {
  Best best = NoBest();
  for (int i = ThreadIndex(); i < vocab && last.token != kNoToken; i += kSampleThreads) {
    const Best here{logits.Of(i), i};
    const bool is_next =
        here.logit < last.logit || (here.logit == last.logit && here.token > last.token);
    best = is_next ? Better(best, here) : best;
  }
  return BlockBest(best, shared.logits, shared.tokens);
}

}  // namespace

TANDEM_KERNEL(sample, SampleParams, kSampleThreads, kBarriers) {
  TANDEM_SHARED(float, logits, kWarps);
  TANDEM_SHARED(int32_t, tokens, kWarps);
  TANDEM_SHARED(Sum, sums, kSampleThreads);
  TANDEM_SHARED(Sum, found, 2);
  const SampleShared shared{logits, tokens, sums, found};
  const SampleRowParams row = params.rows.row_params[BlockX()];
  int token = row.given_token;
  if (token < 0) {
    const int64_t first = int64_t{BlockX()} * params.rows.vocab;
    PrepareLogits(params, row, params.rows.logits + first, params.scratch + first);
    token = Choose(shared, params, row, params.scratch + first);
  }
  if (ThreadIndex() == 0) {
    params.rows.tokens[BlockX()] = token;
  }
}

TANDEM_KERNEL(logprobs, LogprobsParams, kSampleThreads, kBarriers) {
  TANDEM_SHARED(float, best_logits, kWarps);
  TANDEM_SHARED(int32_t, best_tokens, kWarps);
  TANDEM_SHARED(Sum, sums, kSampleThreads);
  TANDEM_SHARED(Sum, found, 2);
  const SampleShared shared{best_logits, best_tokens, sums, found};
  const SampleRowParams row = params.rows.row_params[BlockX()];
  if (row.num_logprobs < 0) {
    return;
  }
  const AllowedLogits logits{params.rows.logits + int64_t{BlockX()} * params.rows.vocab, &row};
  const int chosen = params.rows.tokens[BlockX()];
  Best best = NoBest();
  Sum larger = 0;
  for (int i = ThreadIndex(); i < params.rows.vocab; i += kSampleThreads) {
    best = Better(best, {logits.Of(i), i});
    larger += logits.Of(i) > logits.Of(chosen) ? 1 : 0;
  }
  best = BlockBest(best, shared.logits, shared.tokens);
  const LogSoftmax softmax = LogSoftmaxOf(shared, logits, best, params.rows.vocab);
  int rank = static_cast<int>(BlockScan(shared, larger).total) + 1;
  LogprobEntry* out = params.entries + int64_t{BlockX()} * (1 + params.max_top);
  if (ThreadIndex() == 0) {
    out[0] = {chosen, softmax.Of(logits.Of(chosen)), rank};
  }
  for (int n = 0; n < row.num_logprobs; ++n) {
    if (n > 0) {
      const Best last = best;
      best = NextBest(shared, logits, last, params.rows.vocab);
      rank = best.logit == last.logit ? rank : n + 1;
    } else {
      rank = 1;
    }
    if (ThreadIndex() == 0) {
      const bool is_end = best.token == kNoToken;
      out[1 + n] = {is_end ? -1 : best.token, softmax.Of(best.logit), rank};
    }
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
