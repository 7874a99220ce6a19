#include <sentencepiece_processor.h>

#include <memory>

#include "common/tokenizer/sentencepiece_api.h"

namespace tandem::tokenizer {
namespace {

using sentencepiece::SentencePieceProcessor;

const SentencePieceProcessor& Of(const void* processor) {
  return *static_cast<const SentencePieceProcessor*>(processor);
}

void* Load(std::string_view file, std::string* error) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto({file.data(), file.size()});
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return processor.release();
}

void Destroy(void* processor) { delete static_cast<SentencePieceProcessor*>(processor); }

bool Encode(const void* processor, std::string_view text, std::vector<int>* ids,
            std::string* error) {
  const auto status = Of(processor).Encode({text.data(), text.size()}, ids);
  if (!status.ok()) {
    *error = status.ToString();
  }
  return status.ok();
}

int Size(const void* processor) { return Of(processor).GetPieceSize(); }
std::string Piece(const void* processor, int id) { return Of(processor).IdToPiece(id); }
bool IsControl(const void* processor, int id) { return Of(processor).IsControl(id); }
bool IsUnknown(const void* processor, int id) { return Of(processor).IsUnknown(id); }
bool IsByte(const void* processor, int id) { return Of(processor).IsByte(id); }
int BosId(const void* processor) { return Of(processor).bos_id(); }
int EosId(const void* processor) { return Of(processor).eos_id(); }

constexpr SentencePieceApi kApi = {Load,      Destroy,   Encode, Size,  Piece,
                                   IsControl, IsUnknown, IsByte, BosId, EosId};

}  // namespace
}  // namespace tandem::tokenizer

extern "C" __attribute__((visibility("default"))) const tandem::tokenizer::SentencePieceApi*
tandem_sentencepiece_api() {
  return &tandem::tokenizer::kApi;
}
