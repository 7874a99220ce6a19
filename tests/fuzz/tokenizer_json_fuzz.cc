// A tokenizer.json of any bytes is read or refused; what is read encodes and decodes any text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::tokenizer;
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kTokenizerJson;
  spec.file.assign(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::Create(spec);
  if (!tokenizer.ok()) {
    return 0;
  }
  for (const bool special : {false, true}) {
    EncodeOptions options;
    options.parse_special = special;
    options.add_special = special;
    const auto ids = (*tokenizer)->Encode("ab  word <s> \xc3\xa9\xf0\x9f\x98\x80 12\n", options);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
      (*tokenizer)->TokenBytes(id);
    }
  }
  const TextRange range{3, 9};
  EncodeOptions trusted;
  trusted.special_ranges = {&range, 1};
  return (*tokenizer)->Encode("ab <s> </s>", trusted).ok() ? 0 : 0;
}
