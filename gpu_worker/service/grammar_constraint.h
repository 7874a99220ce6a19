#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/structured_output/compiled_grammar.h"
#include "gpu_worker/pipeline/step_io.h"
#include "gpu_worker/service/mask_team.h"

namespace tandem::gpu_worker {

// Follows one sequence through a grammar. Only committed tokens are ever followed, so an aborted
// step leaves nothing to undo; a sequence that was resumed elsewhere is followed from its first
// token.
absl::StatusOr<std::shared_ptr<TokenConstraint>> MakeGrammarConstraint(
    std::shared_ptr<const structured_output::CompiledGrammar> grammar, int32_t vocab_size,
    std::shared_ptr<MaskTeam> team, int64_t mask_limit_us);

}  // namespace tandem::gpu_worker
