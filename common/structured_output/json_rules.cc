#include "common/structured_output/json_rules.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/number_language.h"

namespace tandem::structured_output {
namespace {

// Up to here a string of bounded length gets a state for each character, so that it may hold
// escapes; each state costs a look at the whole vocabulary. Longer ones are counted by the matcher
// itself, which is quick only for characters that stand for themselves.
constexpr int64_t kMaxCountedStates = 40;
constexpr int64_t kMaxStringLength = 100'000;

constexpr char kQuote[] = "\"\\\"\" ";
constexpr char kPlain[] = "[\\x20-\\x21\\x23-\\x5b\\x5d-\\ud7ff\\ue000-\\U0010ffff]";

}  // namespace

std::string SpaceRule(EbnfWriter* writer) {
  const std::string spaces = writer->Rule("\" \"{0,32}");
  const std::string tabs = writer->Rule("\"\\t\"{1,8}");
  return writer->Rule(base::StrCat("\" \"? (\"\" | \"\\r\"? \"\\n\" (", spaces, " | ", tabs, "))"));
}

std::string StringTailRule(EbnfWriter* writer) {
  // A surrogate only in a pair.
  const std::string low = writer->Rule("\"\\\\u\" [dD] [c-fC-F] [0-9a-fA-F] [0-9a-fA-F]");
  const std::string escape = writer->Rule(base::StrCat(
      "[\"\\\\/bfnrt] | \"u\" ([0-9a-cA-CefEF] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] | ",
      "[dD] ([0-7] [0-9a-fA-F] [0-9a-fA-F] | [89abAB] [0-9a-fA-F] [0-9a-fA-F] ", low, "))"));
  return writer->Recursive("string", [&](const std::string& name) {
    // What comes behind a string in JSON: a hint with which most masks need no look at the context.
    return base::StrCat("(\"\\\"\" | ", kPlain, " ", name, " | \"\\\\\" ", escape, " ", name,
                        ") (= ", SpaceRule(writer), " [,:}\\]])");
  });
}

std::string NumberRule(bool only_integers, EbnfWriter* writer) {
  std::string integer =
      writer->Rule(base::StrCat("\"-\"? (\"0\" | [1-9] [0-9]{0,", kMaxIntegerDigits - 1, "})"));
  if (only_integers) {
    return integer;
  }
  return writer->Rule(base::StrCat(integer, " (\".\" [0-9]{1,", kMaxFractionDigits,
                                   "})? ([eE] [+\\-]? [0-9]{1,", kMaxExponentDigits, "})?"));
}

std::string ObjectRule(EbnfWriter* writer) {
  return writer->Recursive("object", [&](const std::string&) {
    const std::string space = SpaceRule(writer);
    const std::string string = StringTailRule(writer);
    const std::string value = ValueRule(writer);
    const std::string member = writer->Rule(
        base::StrCat("\"\\\"\" ", string, " ", space, " \":\" ", space, " ", value, " ", space));
    const std::string rest = writer->Recursive("members", [&](const std::string& name) {
      return base::StrCat("\"}\" | \",\" ", space, " ", member, " ", name);
    });
    return base::StrCat("\"{\" ", space, " (\"}\" | ", member, " ", rest, ")");
  });
}

std::string ValueRule(EbnfWriter* writer) {
  return writer->Recursive("value", [&](const std::string& name) {
    const std::string space = SpaceRule(writer);
    const std::string rest = writer->Recursive("elements", [&](const std::string& more) {
      return base::StrCat("\"]\" | \",\" ", space, " ", name, " ", space, " ", more);
    });
    const std::string array =
        writer->Rule(base::StrCat("\"[\" ", space, " (\"]\" | ", name, " ", space, " ", rest, ")"));
    return absl::StrJoin(
        {ObjectRule(writer), array, base::StrCat(kQuote, StringTailRule(writer)),
         NumberRule(false, writer), std::string("\"true\" | \"false\" | \"null\"")},
        " | ");
  });
}

absl::StatusOr<std::string> StringOfLength(int64_t min, std::optional<int64_t> max,
                                           EbnfWriter* writer) {
  if (min <= 0 && !max) {
    return writer->Rule(base::StrCat(kQuote, StringTailRule(writer)));
  }
  const int64_t counted = max.value_or(min);
  if (counted > kMaxStringLength) {
    return absl::ResourceExhaustedError(base::StrCat("a length over ", kMaxStringLength));
  }
  if (counted <= kMaxCountedStates) {
    TANDEM_ASSIGN_OR_RETURN(const Automaton counter, TextsOfLength(min, max));
    return writer->Rule(
        base::StrCat(kQuote, AutomatonRule(counter, TextForm::kJsonString, writer)));
  }
  // The matcher is quick with a repetition only where it is all that a rule begins with.
  const std::string plain = writer->Rule(kPlain);
  const std::string tail = max ? std::string("\"\\\"\"") : StringTailRule(writer);
  const std::string counts = base::StrCat("{", min, ",", counted, "} ");
  return writer->Rule(base::StrCat(kQuote, writer->Rule(base::StrCat(plain, counts, tail))));
}

std::string ConstantBody(const Json& value, EbnfWriter* writer) {
  const std::string space = SpaceRule(writer);
  if (value.is_object()) {
    std::vector<std::string> members;
    for (const auto& [key, member] : value.items()) {
      members.push_back(base::StrCat(ConstantBody(Json(key), writer), " ", space, " \":\" ", space,
                                     " ", ConstantBody(member, writer), " ", space));
    }
    return base::StrCat("\"{\" ", space, " ",
                        absl::StrJoin(members, base::StrCat(" \",\" ", space, " ")), " \"}\"");
  }
  if (value.is_array()) {
    std::vector<std::string> elements;
    for (const Json& element : value) {
      elements.push_back(base::StrCat(ConstantBody(element, writer), " ", space));
    }
    return base::StrCat("\"[\" ", space, " ",
                        absl::StrJoin(elements, base::StrCat(" \",\" ", space, " ")), " \"]\"");
  }
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::string ascii = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return ascii == text ? EbnfLiteral(text)
                       : base::StrCat("(", EbnfLiteral(text), " | ", EbnfLiteral(ascii), ")");
}

}  // namespace tandem::structured_output
