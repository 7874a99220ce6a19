#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/structured_output/compiled_grammar.h"

namespace tandem::structured_output {

// Writes a few short texts of the grammar and looks how long each mask takes. ResourceExhausted:
// too long for use beside the steps of a model. Takes a few milliseconds for a good grammar.
absl::Status ProbeGrammar(const std::shared_ptr<const CompiledGrammar>& grammar, int32_t vocab_size,
                          const base::Clock& clock);

}  // namespace tandem::structured_output
