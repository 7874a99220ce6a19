#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "router/frontend/chat_template/chat_template.h"

namespace tandem::chat_template {

// Token ids of a rendered chat. Control tokens are recognised only in what the template wrote, so
// that no message can forge a turn; no BOS is added (the template writes it where it wants one).
absl::StatusOr<std::vector<int32_t>> EncodeChat(const tokenizer::Tokenizer& tokenizer,
                                                const Rendered& rendered);

}  // namespace tandem::chat_template
