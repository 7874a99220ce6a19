#include "common/rpc/tokenizer_spec_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::rpc {
namespace {

using testing::HasSubstr;
using tokenizer::TokenizerSpec;

TokenizerSpec Gguf() {
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kGgufBpe;
  spec.gguf_tokens = {"<s>", "\xff\xfe", "b", "ab"};  // tokens need not be UTF-8
  spec.gguf_scores = {0.0f, -1.5f, 2.0f, 1.0f};
  spec.gguf_types = {3, 6, 1, 1};
  spec.gguf_merges = {"a b"};
  spec.gguf_pre = "smollm";
  spec.gguf_add_space_prefix = false;
  spec.tokenizer_config_json = "{}";
  spec.add_bos = false;
  spec.bos_id = 0;
  spec.eos_id = 3;
  spec.chat_template = "{{ x }}";
  return spec;
}

std::string ErrorOf(const v1::TokenizerSpec& proto) {
  const auto spec = TokenizerSpecFromProto(proto);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(TokenizerSpecProto, EveryFieldComesBack) {
  const TokenizerSpec spec = Gguf();
  v1::TokenizerSpec proto;
  ASSERT_TRUE(proto.ParseFromString(TokenizerSpecToProto(spec).SerializeAsString()));
  const auto back = TokenizerSpecFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kind, spec.kind);
  EXPECT_EQ(back->gguf_tokens, spec.gguf_tokens);
  EXPECT_EQ(back->gguf_scores, spec.gguf_scores);
  EXPECT_EQ(back->gguf_types, spec.gguf_types);
  EXPECT_EQ(back->gguf_merges, spec.gguf_merges);
  EXPECT_EQ(back->gguf_pre, spec.gguf_pre);
  EXPECT_EQ(back->gguf_add_space_prefix, spec.gguf_add_space_prefix);
  EXPECT_EQ(back->tokenizer_config_json, spec.tokenizer_config_json);
  EXPECT_EQ(back->add_bos, spec.add_bos);
  EXPECT_EQ(back->add_eos, spec.add_eos);
  EXPECT_EQ(back->bos_id, spec.bos_id);
  EXPECT_EQ(back->eos_id, spec.eos_id);
  EXPECT_EQ(back->unknown_id, spec.unknown_id);
  EXPECT_EQ(back->chat_template, spec.chat_template);
}

TEST(TokenizerSpecProto, EachKindComesBack) {
  using Kind = TokenizerSpec::Kind;
  for (const Kind kind : {Kind::kNone, Kind::kTokenizerJson, Kind::kSentencePiece, Kind::kGgufBpe,
                          Kind::kGgufSpm, Kind::kTiktoken, Kind::kTekken}) {
    TokenizerSpec spec = Gguf();
    spec.kind = kind;
    spec.file = "bytes";
    const auto back = TokenizerSpecFromProto(TokenizerSpecToProto(spec));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->file, "bytes");
  }
}

TEST(TokenizerSpecProto, HostileSpecsAreRefused) {
  v1::TokenizerSpec proto = TokenizerSpecToProto(Gguf());
  proto.set_kind(static_cast<v1::TokenizerSpec::Kind>(77));
  EXPECT_THAT(ErrorOf(proto), HasSubstr("kind"));

  proto = TokenizerSpecToProto(Gguf());
  proto.clear_gguf_tokens();
  EXPECT_THAT(ErrorOf(proto), HasSubstr("gguf_tokens"));

  proto = TokenizerSpecToProto(Gguf());
  proto.add_gguf_scores(1.0f);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("gguf_scores"));

  proto = TokenizerSpecToProto(Gguf());
  proto.mutable_gguf_types()->RemoveLast();
  EXPECT_THAT(ErrorOf(proto), HasSubstr("gguf_types"));

  for (const int32_t id : {-1, 4}) {
    proto = TokenizerSpecToProto(Gguf());
    proto.set_bos_id(id);
    EXPECT_THAT(ErrorOf(proto), HasSubstr("bos_id"));
  }

  proto = TokenizerSpecToProto(Gguf());
  proto.set_kind(v1::TokenizerSpec::KIND_TOKENIZER_JSON);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("file"));
}

}  // namespace
}  // namespace tandem::rpc
