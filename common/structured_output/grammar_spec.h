#pragma once

#include <string>
#include <vector>

namespace tandem::structured_output {

// What a generated text must look like, as a request asks for it. Plain value; travels from router
// to worker, which compiles it.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object
    kJsonSchema,  // `text` is the schema
    kRegex,       // `text` matched as a whole
    kChoice,      // one of `choices`
    kEbnf,        // `text` is a grammar in GBNF's notation, its start is `root`
    kToolCalls,   // `text` is what ToolCallsText made
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::string param;  // the request's field that errors name
  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// Upper bounds of what a request may ask for; beyond them it is refused.
inline constexpr size_t kMaxSpecBytes = 256u << 10;
inline constexpr size_t kMaxChoices = 4096;

}  // namespace tandem::structured_output
