#pragma once

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::rpc {

v1::TokenizerSpec TokenizerSpecToProto(const tokenizer::TokenizerSpec& spec);

// InvalidArgument names the field: an unknown kind, a kind without what it needs, lists of unequal
// length, or ids outside the vocabulary. What is inside `file` is the tokenizer's to check.
absl::StatusOr<tokenizer::TokenizerSpec> TokenizerSpecFromProto(const v1::TokenizerSpec& proto);

}  // namespace tandem::rpc
