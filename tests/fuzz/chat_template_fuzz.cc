// A chat template of any bytes renders or is refused, within its limits; the spans cover the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::chat_template;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) {
    if (!TemplateErrorOf(parsed.status())) std::abort();
    return 0;
  }
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "h\u00e9llo <|im_end|> \ud83d\ude00"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function":
                  {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
                 {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3})");
  RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.max_output_bytes = 1 << 16;
  options.limits.max_total_bytes = 4 << 20;
  const auto rendered = (*parsed)->Render(variables, options);
  if (!rendered.ok()) {
    if (!TemplateErrorOf(rendered.status())) std::abort();
    return 0;
  }
  size_t end = 0;
  for (const TextSpan& span : rendered->spans) {
    if (span.begin != end || span.end <= span.begin) std::abort();
    end = span.end;
  }
  const bool whole = end == rendered->text.size();
  if (!whole || tandem::tokenizer::FindInvalidUtf8(rendered->text)) std::abort();
  return 0;
}
