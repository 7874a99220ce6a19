#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tokenizer {

// The sentencepiece library behind types of the standard library alone: its header and Abseil's
// both define absl::string_view and cannot meet in one file. Immutable and thread-safe.
class SentencePieceModel {
 public:
  // Null, with the reason in `error`, when `file` is no valid model.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view file, std::string* error);
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // False, with the reason in `error`, when the library fails.
  bool Encode(std::string_view text, std::vector<int>* ids, std::string* error) const;

  int size() const;
  std::string Piece(int id) const;
  bool IsControl(int id) const;
  bool IsUnknown(int id) const;
  bool IsByte(int id) const;
  int bos_id() const;  // -1: none
  int eos_id() const;

 private:
  struct Impl;
  explicit SentencePieceModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::tokenizer
