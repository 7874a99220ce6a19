#pragma once

#include <cstdint>
#include <string>

#include "router/frontend/generation_request.h"
#include "router/frontend/prompts.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::router {

// What one sequence's call to a worker needs beyond the request.
struct UpstreamParams {
  std::string request_id;
  uint64_t seed = 0;
  int32_t max_tokens = 0;
  int64_t deadline_unix_us = 0;
};

// The request as a worker gets it; what the client left open comes from the model's defaults.
void FillUpstream(const GenerationRequest& request, const GenerationDefaults& defaults,
                  const TokenizedPrompt& prompt, const UpstreamParams& params,
                  v1::GenerateRequest* upstream);

}  // namespace tandem::router
