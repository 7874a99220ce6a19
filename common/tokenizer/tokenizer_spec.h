#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::tokenizer {

// What a model's files say about its tokenizer, before it is built. Plain value; travels from
// worker to router.
struct TokenizerSpec {
  enum class Kind { kNone, kTokenizerJson, kSentencePiece, kGgufBpe, kGgufSpm, kTiktoken, kTekken };
  Kind kind = Kind::kNone;
  std::string
      file;  // bytes of tokenizer.json, the sentencepiece model, the tiktoken or tekken file

  // GGUF vocabularies (tokenizer.ggml.*), indexed by token id; types as in GGUF: 1 normal, 2
  // unknown, 3 control, 4 user defined, 5 unused, 6 byte.
  std::vector<std::string> gguf_tokens;
  std::vector<float> gguf_scores;
  std::vector<int32_t> gguf_types;
  std::vector<std::string> gguf_merges;
  std::string gguf_pre;
  bool gguf_add_space_prefix = true;

  std::string tokenizer_config_json;  // bytes of tokenizer_config.json, or empty
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> unknown_id;
  std::string chat_template;  // Jinja; empty: none
};

}  // namespace tandem::tokenizer
