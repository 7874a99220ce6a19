#pragma once

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/structured_output/grammar_spec.h"
#include "gpu_worker/engine/engine.h"
#include "tandem/v1/inference.pb.h"

// Between the protocol and the engine's values.
namespace tandem::gpu_worker {

// Validates everything that does not depend on the engine's state. InvalidArgument carries an
// ErrorDetail with the field as the OpenAI API spells it; DeadlineExceeded: it is over already.
absl::StatusOr<GenerationRequest> ToGenerationRequest(const v1::GenerateRequest& proto,
                                                      int32_t vocab_size, const base::Clock& clock);

// InvalidArgument: a kind that we do not know, or too long.
absl::StatusOr<structured_output::GrammarSpec> ToGrammarSpec(const v1::GrammarSpec& proto);

// The gRPC error of a refusal; OK for kAccepted.
absl::Status RefusalStatus(const SubmitResult& result);

// Appends an update to a message that may already hold earlier ones.
void AppendUpdate(const GenerationUpdate& update, v1::GenerateResponse* response);

}  // namespace tandem::gpu_worker
