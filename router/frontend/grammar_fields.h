#pragma once

#include <optional>
#include <string_view>

#include "common/structured_output/grammar_spec.h"
#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::router {

// A format as OpenAI's APIs spell it: {"type": "text"}, "json_object", or "json_schema" with the
// schema under "json_schema" or beside it. Nothing for text. Whether the schema can be followed is
// the worker's to say.
ApiResult GrammarFromFormat(std::string_view param, const Json& format,
                            std::optional<structured_output::GrammarSpec>* grammar);

// Readers of the request's fields; two that ask for different things exclude each other.
ApiResult ReadResponseFormat(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadStructuredOutputs(std::string_view name, const Json& value,
                                GenerationRequest* request);
// guided_json, guided_regex, guided_choice, guided_grammar: vLLM's older spelling.
ApiResult ReadGuided(std::string_view name, const Json& value, GenerationRequest* request);

void FillGrammar(const structured_output::GrammarSpec& spec, v1::GrammarSpec* proto);

}  // namespace tandem::router
