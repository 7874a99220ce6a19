#include "router/frontend/endpoints/plain_answers.h"

#include <vector>

#include "router/frontend/json_text.h"
#include "router/frontend/model_text.h"
#include "router/frontend/response_format.h"
#include "router/frontend/routes.h"

namespace tandem::router {

ApiResult ModelsBody(const Fleet& fleet, std::string_view path, std::string* body) {
  if (path.starts_with(kModelsPrefix)) {
    const std::string name = DecodePath(path.substr(kModelsPrefix.size()));
    const auto model = fleet.FindModel(name);
    if (!model) {
      return ModelNotFound(name);
    }
    AppendModel(*model, name, body);
    return std::nullopt;
  }
  *body = "{\"object\":\"list\",\"data\":[";
  bool first = true;
  for (const auto& model : fleet.Models()) {
    for (const std::string& name : model->served_names) {
      *body += first ? "" : ",";
      AppendModel(*model, name, body);
      first = false;
    }
  }
  *body += "]}";
  return std::nullopt;
}

std::string TokenizeBody(const GenerationRequest& request, const ModelInfo& model,
                         const TokenizedPrompt& prompt) {
  const std::vector<int32_t>& tokens = prompt.tokens;
  std::string body = "{\"count\":" + std::to_string(tokens.size()) +
                     ",\"max_model_len\":" + std::to_string(model.max_model_len) + ",\"tokens\":";
  AppendIds(tokens, &body);
  if (request.return_token_strings && model.text) {
    body += ",\"token_strs\":[";
    for (size_t i = 0; i < tokens.size(); ++i) {
      body += i > 0 ? "," : "";
      AppendJsonString(model.text->tokenizer->TokenText(tokens[i]), &body);
    }
    body += ']';
  }
  return body + '}';
}

std::string DetokenizeBody(std::string_view text) {
  std::string body = "{\"prompt\":";
  AppendJsonString(text, &body);
  return body + '}';
}

}  // namespace tandem::router
