#include "common/structured_output/probe_grammar.h"

#include <bit>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::structured_output {
namespace {

constexpr int kTexts = 3;
constexpr int kTokens = 12;
// Far above what a sound grammar needs (some ten microseconds), and above what a busy machine adds.
constexpr int64_t kSlowMaskUs = 100'000;
constexpr int kSlowMasks = 2;

// A token that the mask allows, far from the last choice; -1: none.
int32_t Choose(const std::vector<uint32_t>& mask, uint32_t seed) {
  const size_t words = mask.size();
  const size_t start = seed % words;
  for (size_t i = 0; i < words; ++i) {
    const uint32_t word = mask[(start + i) % words];
    if (word != 0) {
      const int shift = static_cast<int>(seed / 7 % 32);
      const uint32_t turned = std::rotr(word, shift);
      const int bit = (std::countr_zero(turned) + shift) % 32;
      return static_cast<int32_t>((start + i) % words * 32) + bit;
    }
  }
  return -1;
}

}  // namespace

absl::Status ProbeGrammar(const std::shared_ptr<const CompiledGrammar>& grammar, int32_t vocab_size,
                          const base::Clock& clock) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<GrammarMatcher> matcher,
                          GrammarMatcher::Create(grammar));
  std::vector<uint32_t> mask((static_cast<size_t>(vocab_size) + 31) / 32);
  int slow = 0;
  uint32_t seed = 1;
  for (int text = 0; text < kTexts; ++text) {
    matcher->Reset();
    for (int i = 0; i < kTokens; ++i) {
      const int64_t started_us = clock.NowUs();
      if (!matcher->FillMask(mask)) {
        if (i == 0) {
          return absl::InternalError("the grammar gives no mask");
        }
        break;  // the last token was an end token
      }
      seed = seed * 1664525u + 1013904223u;
      const int32_t token = Choose(mask, seed >> 8);
      if (token < 0 && i == 0) {
        return absl::InvalidArgumentError("no text satisfies the grammar");
      }
      const bool goes_on = token >= 0 && matcher->Accept(token);
      slow += clock.NowUs() - started_us > kSlowMaskUs ? 1 : 0;
      if (slow >= kSlowMasks) {
        return absl::ResourceExhaustedError(
            "it takes too long to follow; simplify its repetitions");
      }
      if (!goes_on) {
        break;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::structured_output
