#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/sentencepiece_api.h"

namespace tandem::tokenizer {

// A model of the sentencepiece library, reached through its module. Immutable and thread-safe.
class SentencePieceModel {
 public:
  // Null, with the reason in `error`, when `file` is no valid model or the module cannot be opened.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view file, std::string* error);
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // False, with the reason in `error`, when the library fails.
  bool Encode(std::string_view text, std::vector<int>* ids, std::string* error) const {
    return api_.encode(processor_, text, ids, error);
  }

  int size() const { return api_.size(processor_); }
  std::string Piece(int id) const { return api_.piece(processor_, id); }
  bool IsControl(int id) const { return api_.is_control(processor_, id); }
  bool IsUnknown(int id) const { return api_.is_unknown(processor_, id); }
  bool IsByte(int id) const { return api_.is_byte(processor_, id); }
  int bos_id() const { return api_.bos_id(processor_); }  // -1: none
  int eos_id() const { return api_.eos_id(processor_); }

 private:
  SentencePieceModel(const SentencePieceApi& api, void* processor)
      : api_(api), processor_(processor) {}

  const SentencePieceApi& api_;
  void* processor_;
};

}  // namespace tandem::tokenizer
