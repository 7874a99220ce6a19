// Runs a fuzz target without libFuzzer: every file of the corpus, then seeded mutations of them.
// Deterministic; the seed of a failing run is printed before the run when TANDEM_FUZZ_VERBOSE is
// set.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> ReadCorpus(const std::string& folder) {
  std::vector<Bytes> corpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    corpus.push_back(Bytes(64, 0));
  }
  return corpus;
}

void MutateOnce(Bytes& input, std::mt19937_64& random) {
  if (input.empty()) {
    input.push_back(0);
  }
  const size_t at = random() % input.size();
  switch (random() % 5) {
    case 0:
      input[at] = static_cast<uint8_t>(random());
      break;
    case 1:
      input[at] ^= static_cast<uint8_t>(1u << (random() % 8));
      break;
    case 2:
      input.resize(at);
      break;
    case 3:
      input.insert(input.begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>(random()));
      break;
    default:  // a run of ones or zeros where lengths and offsets stand
      for (size_t i = at; i < input.size() && i < at + 8; ++i) {
        input[i] = (random() & 1) != 0 ? 0xff : 0x00;
      }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  int runs = 1000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--corpus") folder = argv[i + 1];
    if (std::string(argv[i]) == "--runs") runs = std::atoi(argv[i + 1]);
  }
  const std::vector<Bytes> corpus = ReadCorpus(folder);
  for (const Bytes& input : corpus) {
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  const bool verbose = std::getenv("TANDEM_FUZZ_VERBOSE") != nullptr;
  for (int run = 0; run < runs; ++run) {
    std::mt19937_64 random(static_cast<uint64_t>(run) + 1);
    if (verbose) {
      std::fprintf(stderr, "run %d\n", run);
    }
    Bytes input = corpus[random() % corpus.size()];
    for (uint64_t i = 0, count = 1 + random() % 8; i < count; ++i) {
      MutateOnce(input, random);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu corpus files and %d mutations passed\n", corpus.size(), runs);
  return 0;
}
