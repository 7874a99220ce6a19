#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/structured_output/automaton.h"

namespace tandem::structured_output {

// `"..."` of a text and `[...]` of a set in the grammar notation, ASCII only.
std::string EbnfLiteral(std::string_view utf8);
std::string EbnfSet(const CodePointSet& set);

// Collects the rules of one grammar. Equal bodies share a rule.
class EbnfWriter {
 public:
  static constexpr size_t kMaxRules = 20'000;
  static constexpr size_t kMaxBytes = 2u << 20;

  // The name of a rule with this body.
  std::string Rule(const std::string& body);
  // A name first, its body later: for rules that use themselves.
  std::string Reserve();
  void Define(const std::string& name, const std::string& body);

  // The rule known as `key`, made by `body` of its own name when it is asked for first.
  std::string Recursive(const std::string& key,
                        const std::function<std::string(const std::string&)>& body);

  // Too large already: nothing more needs to be added.
  bool is_full() const { return rules_.size() > kMaxRules || bytes_ > kMaxBytes; }
  // The whole grammar; ResourceExhausted when it is too large.
  absl::StatusOr<std::string> Finish(const std::string& root_body) const;

 private:
  std::vector<std::string> rules_;  // bodies, by number
  absl::flat_hash_map<std::string, std::string> names_;
  absl::flat_hash_map<std::string, std::string> keys_;
  size_t bytes_ = 0;
};

enum class TextForm {
  kRaw,         // the texts themselves
  kJsonString,  // their JSON spelling without the first quote, with the last one
};

// The name of a rule for the texts of an automaton that accepts something. A character of a JSON
// string stands for itself, or has its short escape where JSON asks for one.
std::string AutomatonRule(const Automaton& automaton, TextForm form, EbnfWriter* writer);

// States of `automaton` that take most characters: each costs a look at the whole vocabulary.
size_t BroadStates(const Automaton& automaton);

}  // namespace tandem::structured_output
