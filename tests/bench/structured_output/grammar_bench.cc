// Cost of structured output: time to prepare each schema, and of the mask of each token along
// random texts.
//   grammar_bench TOKENIZER SCHEMAS.jsonl [--texts]
// SCHEMAS: one {"id", "schema"} per line. --texts: prints every finished text as {"id", "text"}
// instead of the table, so that another validator can check them.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "cli/text/open_tokenizer.h"
#include "common/structured_output/compiled_grammar.h"
#include "common/structured_output/grammar_text.h"
#include "nlohmann/json.hpp"
#include "tests/bench/structured_output/figures.h"

namespace tandem::structured_output {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Run {
  int num_texts = 5;
  std::vector<double> masks_us;
  std::vector<double> tokens_us;  // accepting one and making the next mask
  std::vector<std::string> texts;
};

// Texts of at most 200 tokens each, drawn from the masks.
void Draw(GrammarMatcher& matcher, const tokenizer::Tokenizer& tokenizer, int32_t end,
          std::mt19937& random, Run* run) {
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32);
  std::vector<int32_t> allowed;
  for (int i = 0; i < run->num_texts; ++i) {
    matcher.Reset();
    std::string text;
    double accept_us = 0;
    for (int step = 0; step < 200; ++step) {
      const auto start = Clock::now();
      if (!matcher.FillMask(mask)) {
        return;
      }
      run->masks_us.push_back(Microseconds(Clock::now() - start));
      run->tokens_us.push_back(run->masks_us.back() + accept_us);
      allowed.clear();
      for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0) {
          allowed.push_back(id);
        }
      }
      if (allowed.empty()) {
        return;
      }
      const int32_t token = allowed[random() % allowed.size()];
      if (token == end) {
        run->texts.push_back(text);
        break;
      }
      text += tokenizer.TokenBytes(token);
      const auto before = Clock::now();
      matcher.Accept(token);
      accept_us = Microseconds(Clock::now() - before);
    }
  }
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: grammar_bench TOKENIZER SCHEMAS.jsonl [--texts]\n");
    return 2;
  }
  const bool print_texts = argc > 3 && std::string(argv[3]) == "--texts";
  const auto tokenizer = cli::OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const int32_t end = (*tokenizer)->eos_id().value_or((*tokenizer)->vocab_size() - 1);
  const auto compiler =
      GrammarCompiler::Create(**tokenizer, (*tokenizer)->vocab_size(), std::span(&end, 1));
  if (!compiler.ok()) {
    std::fprintf(stderr, "%s\n", compiler.status().ToString().c_str());
    return 1;
  }
  std::ifstream in(argv[2]);
  std::mt19937 random(1);
  std::vector<double> masks_us;
  std::vector<double> tokens_us;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    GrammarSpec spec;
    spec.kind = GrammarSpec::Kind::kJsonSchema;
    spec.text = row["schema"].dump();
    const auto start = Clock::now();
    const auto text = GrammarText(spec);
    if (!text.ok()) {
      continue;
    }
    const auto grammar = (*compiler)->Compile(*text);
    const double prepare_ms = Microseconds(Clock::now() - start) / 1000;
    if (!grammar.ok()) {
      std::fprintf(stderr, "%s: %s\n", row["id"].dump().c_str(),
                   grammar.status().ToString().c_str());
      continue;
    }
    const auto matcher = GrammarMatcher::Create(*grammar);
    if (!matcher.ok()) {
      return 1;
    }
    Run run;
    run.num_texts = print_texts ? 20 : 5;
    Draw(**matcher, **tokenizer, end, random, &run);
    if (print_texts) {
      for (const std::string& one : run.texts) {
        const Json out = {{"id", row["id"]}, {"text", one}};
        std::printf("%s\n", out.dump(-1, ' ', true, Json::error_handler_t::replace).c_str());
      }
      continue;
    }
    masks_us.insert(masks_us.end(), run.masks_us.begin(), run.masks_us.end());
    tokens_us.insert(tokens_us.end(), run.tokens_us.begin(), run.tokens_us.end());
    std::printf("%-24s prepare %8.1f ms  mask p50 %6.1f us  p99 %6.1f us  %zu tokens\n",
                row["id"].get<std::string>().c_str(), prepare_ms, Quantile(run.masks_us, 0.5),
                Quantile(run.masks_us, 0.99), run.masks_us.size());
  }
  if (!print_texts) {
    std::printf(
        "vocabulary %d: mask p50 %.1f us, p99 %.1f us; with accepting the token p99 %.1f us (%zu "
        "tokens)\n",
        (*tokenizer)->vocab_size(), Quantile(masks_us, 0.5), Quantile(masks_us, 0.99),
        Quantile(tokens_us, 0.99), masks_us.size());
  }
  return 0;
}

}  // namespace
}  // namespace tandem::structured_output

int main(int argc, char** argv) { return tandem::structured_output::Main(argc, argv); }
