#include "common/rpc/tokenizer_spec_proto.h"

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::rpc {
namespace {

using tokenizer::TokenizerSpec;
using Kind = TokenizerSpec::Kind;

// Far above any vocabulary there is; keeps a hostile peer from making us build giant tables.
constexpr int kMaxVocabulary = 4'000'000;

constexpr std::pair<Kind, v1::TokenizerSpec::Kind> kKinds[] = {
    {Kind::kNone, v1::TokenizerSpec::KIND_UNSPECIFIED},
    {Kind::kTokenizerJson, v1::TokenizerSpec::KIND_TOKENIZER_JSON},
    {Kind::kSentencePiece, v1::TokenizerSpec::KIND_SENTENCEPIECE},
    {Kind::kGgufBpe, v1::TokenizerSpec::KIND_GGUF_BPE},
    {Kind::kGgufSpm, v1::TokenizerSpec::KIND_GGUF_SPM},
    {Kind::kTiktoken, v1::TokenizerSpec::KIND_TIKTOKEN},
    {Kind::kTekken, v1::TokenizerSpec::KIND_TEKKEN},
};

absl::Status Bad(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat("TokenizerSpec.", field, ": ", what));
}

absl::Status CheckGguf(const TokenizerSpec& spec) {
  const size_t size = spec.gguf_tokens.size();
  if (size == 0 || size > kMaxVocabulary) {
    return Bad("gguf_tokens", base::StrCat(size, " tokens"));
  }
  if (!spec.gguf_scores.empty() && spec.gguf_scores.size() != size) {
    return Bad("gguf_scores", base::StrCat(spec.gguf_scores.size(), " for ", size, " tokens"));
  }
  if (!spec.gguf_types.empty() && spec.gguf_types.size() != size) {
    return Bad("gguf_types", base::StrCat(spec.gguf_types.size(), " for ", size, " tokens"));
  }
  for (const auto& [name, id] : {std::pair("bos_id", spec.bos_id), std::pair("eos_id", spec.eos_id),
                                 std::pair("unknown_id", spec.unknown_id)}) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= size)) {
      return Bad(name, base::StrCat(*id, " is not in a vocabulary of ", size));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const TokenizerSpec& spec) {
  switch (spec.kind) {
    case Kind::kNone:
      return absl::OkStatus();
    case Kind::kGgufBpe:
    case Kind::kGgufSpm:
      return CheckGguf(spec);
    case Kind::kTokenizerJson:
    case Kind::kSentencePiece:
    case Kind::kTiktoken:
    case Kind::kTekken:
      return spec.file.empty() ? Bad("file", "empty") : absl::OkStatus();
  }
  return Bad("kind", "unknown");
}

}  // namespace

v1::TokenizerSpec TokenizerSpecToProto(const TokenizerSpec& spec) {
  v1::TokenizerSpec proto;
  for (const auto& [kind, proto_kind] : kKinds) {
    if (kind == spec.kind) {
      proto.set_kind(proto_kind);
    }
  }
  proto.set_file(spec.file);
  proto.mutable_gguf_tokens()->Assign(spec.gguf_tokens.begin(), spec.gguf_tokens.end());
  proto.mutable_gguf_scores()->Assign(spec.gguf_scores.begin(), spec.gguf_scores.end());
  proto.mutable_gguf_types()->Assign(spec.gguf_types.begin(), spec.gguf_types.end());
  proto.mutable_gguf_merges()->Assign(spec.gguf_merges.begin(), spec.gguf_merges.end());
  proto.set_gguf_pre(spec.gguf_pre);
  proto.set_gguf_add_space_prefix(spec.gguf_add_space_prefix);
  proto.set_tokenizer_config_json(spec.tokenizer_config_json);
  if (spec.add_bos) {
    proto.set_add_bos(*spec.add_bos);
  }
  if (spec.add_eos) {
    proto.set_add_eos(*spec.add_eos);
  }
  if (spec.bos_id) {
    proto.set_bos_id(*spec.bos_id);
  }
  if (spec.eos_id) {
    proto.set_eos_id(*spec.eos_id);
  }
  if (spec.unknown_id) {
    proto.set_unknown_id(*spec.unknown_id);
  }
  proto.set_chat_template(spec.chat_template);
  return proto;
}

absl::StatusOr<TokenizerSpec> TokenizerSpecFromProto(const v1::TokenizerSpec& proto) {
  TokenizerSpec spec;
  bool known = false;
  for (const auto& [kind, proto_kind] : kKinds) {
    if (proto_kind == proto.kind()) {
      spec.kind = kind;
      known = true;
    }
  }
  if (!known) {
    return Bad("kind", base::StrCat(static_cast<int>(proto.kind()), " is unknown"));
  }
  spec.file = proto.file();
  spec.gguf_tokens.assign(proto.gguf_tokens().begin(), proto.gguf_tokens().end());
  spec.gguf_scores.assign(proto.gguf_scores().begin(), proto.gguf_scores().end());
  spec.gguf_types.assign(proto.gguf_types().begin(), proto.gguf_types().end());
  spec.gguf_merges.assign(proto.gguf_merges().begin(), proto.gguf_merges().end());
  spec.gguf_pre = proto.gguf_pre();
  spec.gguf_add_space_prefix = proto.gguf_add_space_prefix();
  spec.tokenizer_config_json = proto.tokenizer_config_json();
  if (proto.has_add_bos()) {
    spec.add_bos = proto.add_bos();
  }
  if (proto.has_add_eos()) {
    spec.add_eos = proto.add_eos();
  }
  if (proto.has_bos_id()) {
    spec.bos_id = proto.bos_id();
  }
  if (proto.has_eos_id()) {
    spec.eos_id = proto.eos_id();
  }
  if (proto.has_unknown_id()) {
    spec.unknown_id = proto.unknown_id();
  }
  spec.chat_template = proto.chat_template();
  TANDEM_RETURN_IF_ERROR(Check(spec));
  return spec;
}

}  // namespace tandem::rpc
