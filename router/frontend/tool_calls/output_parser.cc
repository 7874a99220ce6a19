#include "router/frontend/tool_calls/output_parser.h"

#include <string>
#include <utility>

namespace tandem::tool_calls {

OutputParser::OutputParser(OutputParserOptions options)
    : drops_reasoning_(options.drops_reasoning), tools_(std::move(options.tools)) {
  if (options.splits_reasoning) {
    splitter_.emplace(options.starts_in_reasoning);
  }
}

void OutputParser::Append(std::string_view text, OutputDelta* out) {
  if (!splitter_) {
    tools_.Append(text, out);
    return;
  }
  std::string content, reasoning;
  splitter_->Append(text, &reasoning, &content);
  out->reasoning += drops_reasoning_ ? "" : reasoning;
  tools_.Append(content, out);
}

void OutputParser::Finish(OutputDelta* out) {
  if (splitter_) {
    std::string content, reasoning;
    splitter_->Finish(&reasoning, &content);
    out->reasoning += drops_reasoning_ ? "" : reasoning;
    tools_.Append(content, out);
  }
  tools_.Finish(out);
}

}  // namespace tandem::tool_calls
