#include "common/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace tandem::tokenizer {

struct SentencePieceModel::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view file,
                                                             std::string* error) {
  auto impl = std::make_unique<Impl>();
  const auto status = impl->processor.LoadFromSerializedProto(file);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(impl)));
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<int>* ids,
                                std::string* error) const {
  const auto status = impl_->processor.Encode(text, ids);
  if (!status.ok()) {
    *error = status.ToString();
  }
  return status.ok();
}

int SentencePieceModel::size() const { return impl_->processor.GetPieceSize(); }
std::string SentencePieceModel::Piece(int id) const { return impl_->processor.IdToPiece(id); }
bool SentencePieceModel::IsControl(int id) const { return impl_->processor.IsControl(id); }
bool SentencePieceModel::IsUnknown(int id) const { return impl_->processor.IsUnknown(id); }
bool SentencePieceModel::IsByte(int id) const { return impl_->processor.IsByte(id); }
int SentencePieceModel::bos_id() const { return impl_->processor.bos_id(); }
int SentencePieceModel::eos_id() const { return impl_->processor.eos_id(); }

}  // namespace tandem::tokenizer
