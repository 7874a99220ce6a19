#pragma once

#include <string>
#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/frontend/model_text.h"
#include "router/frontend/prompts.h"
#include "router/frontend/tool_calls/output_parser.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Readers of OpenAI's chat fields.
ApiResult ReadChatTools(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadChatToolChoice(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadParallelToolCalls(std::string_view name, const Json& value,
                                GenerationRequest* request);
// The same of /v1/responses, whose tools are flat objects, and of /v1/messages.
ApiResult ReadFlatTools(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadFlatToolChoice(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadMessagesTools(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadMessagesToolChoice(std::string_view name, const Json& value,
                                 GenerationRequest* request);
// What concerns the choice and the tools together, once both are read.
ApiResult CheckTools(GenerationRequest* request);

// The way in which this model is to write its calls.
tool_calls::Format ToolFormatOf(const ModelText& text);
// Settings that the tools need, once the model is known: the grammar of enforced calls, and control
// tokens that mark calls.
ApiResult PrepareTools(GenerationRequest* request, const ModelText& text);
// For a template that knows no tools: puts them into a system message, and calls and their results
// into text.
void WriteToolsAsText(const GenerationRequest& request, const ModelText& text, Json* messages);

// Mistral's templates refuse ids of calls that are not of nine letters and digits; other servers'
// and other dialects' ids are cut to that.
void FitCallIds(const ModelText& text, Json* messages);

// How the output of a chat is taken apart. `id_seed` differs between answers.
tool_calls::OutputParserOptions ParserFor(const GenerationRequest& request, const ModelText& text,
                                          const TokenizedPrompt& prompt,
                                          const std::string& id_seed);

}  // namespace tandem::router
