#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::tokenizer {

// Function table of the module that holds the sentencepiece library. Debian's libsentencepiece
// exports a protobuf runtime of its own; linked into a program that uses libprotobuf, the two would
// answer each other's symbols. So the library lives in a module that is opened with its own symbols
// first, and only this table crosses the border.
struct SentencePieceApi {
  // Null, with the reason in `error`, when `file` is no valid model.
  void* (*load)(std::string_view file, std::string* error);
  void (*destroy)(void* processor);
  bool (*encode)(const void* processor, std::string_view text, std::vector<int>* ids,
                 std::string* error);
  int (*size)(const void* processor);
  std::string (*piece)(const void* processor, int id);
  bool (*is_control)(const void* processor, int id);
  bool (*is_unknown)(const void* processor, int id);
  bool (*is_byte)(const void* processor, int id);
  int (*bos_id)(const void* processor);
  int (*eos_id)(const void* processor);
};

inline constexpr char kSentencePieceApiSymbol[] = "tandem_sentencepiece_api";

}  // namespace tandem::tokenizer
