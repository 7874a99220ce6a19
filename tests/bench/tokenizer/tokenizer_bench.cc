// Speed of encoding.
//   tokenizer_bench TOKENIZER TEXT: MB/s of TEXT (a file) on one core, and the time for 50 and 100
//   kB of one character, which must about double.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/text/open_tokenizer.h"

namespace tandem::tokenizer {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text, int rounds) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    const auto ids = tokenizer.Encode(text, {});
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().ToString().c_str());
      return best;
    }
    best = std::min(best, seconds);
  }
  return best;
}

int Main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT\n");
    return 2;
  }
  const auto tokenizer = cli::OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  std::ifstream in(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const double seconds = SecondsToEncode(**tokenizer, text, 5);
  std::printf("%s\n  %.1f MB/s on %zu bytes\n", argv[1],
              static_cast<double>(text.size()) / seconds / 1e6, text.size());
  for (const char* unit : {"a", " ", "\n", "1", ".", "=", "\xc3\xa9", "\xe4\xbd\xa0",
                           "\xf0\x9f\x98\x80", "ab ", "A", "\t", "_"}) {
    const size_t bytes = std::string(unit).size();
    std::string small;
    for (size_t i = 0; i < 50'000 / bytes; ++i) {
      small += unit;
    }
    const double one = SecondsToEncode(**tokenizer, small, 2);
    const double two = SecondsToEncode(**tokenizer, small + small, 2);
    std::printf("  %-6s 50 kB %7.2f ms, 100 kB %7.2f ms\n",
                *unit == '\n'   ? "\\n"
                : *unit == '\t' ? "\\t"
                                : unit,
                one * 1e3, two * 1e3);
  }
  return 0;
}

}  // namespace
}  // namespace tandem::tokenizer

int main(int argc, char** argv) { return tandem::tokenizer::Main(argc, argv); }
