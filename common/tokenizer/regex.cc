#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::tokenizer {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackStart = 64u << 10;
constexpr size_t kJitStackMax = 16u << 20;
constexpr size_t kMaxPatternBytes = 64u << 10;
constexpr size_t kMaxCompiledBytes = 4u << 20;

// \s means Unicode's White_Space in the dialects that tokenizer files use; PCRE2's also takes
// U+180E. A \S inside brackets stays PCRE2's.
std::string WithUnicodeSpaces(const std::string& pattern) {
  constexpr char kSpaces[] = "\\x{09}-\\x{0d}\\x{85}\\p{Z}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        absl::StrAppend(&out, in_class ? "" : "[", kSpaces, in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        absl::StrAppend(&out, "[^", kSpaces, "]");
      } else {
        out.push_back(c);
        out.push_back(escaped);
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
    } else if (c == ']' && in_class) {
      in_class = false;
    }
    out.push_back(c);
  }
  return out;
}

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::~Regex() = default;

absl::StatusOr<std::shared_ptr<const Regex>> Regex::Compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression of ", pattern.size(), " bytes"));
  }
  const std::string portable = WithUnicodeSpaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(portable.data()), portable.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr);
  if (code->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression ", pattern, ": ", ErrorText(error)));
  }
  size_t compiled_bytes = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_SIZE, &compiled_bytes);
  if (compiled_bytes > kMaxCompiledBytes) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression too large: ", pattern));
  }
  // Without JIT (forbidden by the system) matching is slower but the same.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return std::shared_ptr<const Regex>(new Regex(std::move(code)));
}

struct Regex::Matches::State {
  const pcre2_code* code = nullptr;
  std::string_view text;
  size_t at = 0;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>()) {
  state_->code = regex.code_->code;
  state_->text = text;
  state_->data = pcre2_match_data_create_from_pattern(state_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  if (state_->context != nullptr) {
    pcre2_set_match_limit(state_->context, kMatchLimit);
    if (state_->stack != nullptr) {
      pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
    }
  }
}

Regex::Matches::~Matches() = default;

absl::StatusOr<std::optional<TextRange>> Regex::Matches::Next() {
  if (state_->data == nullptr || state_->context == nullptr) {
    return absl::ResourceExhaustedError("out of memory for a regular expression");
  }
  while (state_->at < state_->text.size()) {
    const int found = pcre2_match(
        state_->code, reinterpret_cast<PCRE2_SPTR>(state_->text.data()), state_->text.size(),
        state_->at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state_->data, state_->context);
    if (found == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (found < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regular expression of the tokenizer: ", ErrorText(found)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state_->data);
    const TextRange range{bounds[0], bounds[1]};
    if (range.end <= range.begin || range.begin < state_->at) {  // \K can do that
      return absl::InvalidArgumentError("regular expression of the tokenizer moves its start");
    }
    state_->at = range.end;
    return std::optional<TextRange>(range);
  }
  state_->at = state_->text.size();
  return std::optional<TextRange>();
}

}  // namespace tandem::tokenizer
