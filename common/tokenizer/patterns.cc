#include "common/tokenizer/patterns.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::tokenizer {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char kLlama3Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                              R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kQwen2Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kTekkenPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

const char kQwen35Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kGpt4oPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kFalconPunctuation[] = R"([\p{P}\$\+<=>\^~\|`]+)";
const char kThreeDigits[] = "[0-9][0-9][0-9]";
const char kDeepseekHan[] = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
const char kDeepseekWords[] = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                              R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
                              R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kDeepseekCoderHan[] = R"([\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";

std::map<std::string, GgufPattern> MakePatterns() {
  const GgufPattern gpt2{{kGpt2Pattern}};
  const GgufPattern digits_gpt2{{R"(\p{N})", kGpt2Pattern}};
  const GgufPattern llama3{{kLlama3Pattern}, /*whole_words=*/true};
  const GgufPattern qwen2{{kQwen2Pattern}, false, /*nfc=*/true};
  std::map<std::string, GgufPattern> patterns;
  for (const char* name :
       {"gpt-2", "default", "", "phi-2", "mpt", "olmo", "roberta-bpe", "gigachat", "jina-es",
        "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum"}) {
    patterns[name] = gpt2;
  }
  for (const char* name : {"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"}) {
    patterns[name] = digits_gpt2;
  }
  patterns["command-r"] = {digits_gpt2.splits, false, true};
  for (const char* name :
       {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}) {
    patterns[name] = llama3;
  }
  for (const char* name : {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}) {
    patterns[name] = {llama3.splits};
  }
  for (const char* name : {"qwen2", "deepseek-r1-qwen", "kormo", "megrez"}) {
    patterns[name] = qwen2;
  }
  patterns["stablelm2"] = {qwen2.splits};
  patterns["hunyuan"] = {qwen2.splits};
  patterns["qwen35"] = {{kQwen35Pattern}, false, true};
  patterns["tekken"] = {{kTekkenPattern}, true};
  patterns["gpt-4o"] = {{kGpt4oPattern}};
  patterns["llama4"] = {{kGpt4oPattern}};
  patterns["falcon"] = {{kFalconPunctuation, kGpt2Pattern, kThreeDigits}};
  patterns["deepseek-v3"] = {{R"(\p{N}{1,3})", kDeepseekHan, kDeepseekWords}};
  patterns["deepseek-coder"] = {
      {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCoderHan, R"(\p{N})"}};
  return patterns;
}

}  // namespace

absl::StatusOr<GgufPattern> PatternOfGgufPre(const std::string& pre) {
  static const auto& patterns = *new std::map<std::string, GgufPattern>(MakePatterns());
  const auto it = patterns.find(pre);
  if (it == patterns.end()) {
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.pre: unknown name ", pre));
  }
  return it->second;
}

}  // namespace tandem::tokenizer
