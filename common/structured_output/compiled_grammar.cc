#include "common/structured_output/compiled_grammar.h"

#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/structured_output/xgrammar_library.h"

namespace tandem::structured_output {
namespace {

constexpr int32_t kRawStringIndex = 8;  // a text that ends with a zero byte
constexpr int32_t kRawVocabulary = 0;   // tokens are given as the bytes they stand for

abi::Any TextArgument(const std::string& text) {
  abi::Any any;
  any.type_index = kRawStringIndex;
  any.as_pointer = const_cast<char*>(text.c_str());  // the library only reads it
  return any;
}

absl::StatusOr<Value> MakeVocabulary(const XGrammarLibrary& library,
                                     const tokenizer::Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<Value> tokens;
  std::vector<abi::Any> views;
  for (int32_t id = 0; id < vocab_size; ++id) {
    // Control tokens and gaps may never stand in a text: the library takes an empty token for one.
    const bool usable = id < tokenizer.vocab_size() && !tokenizer.IsSpecial(id);
    TANDEM_ASSIGN_OR_RETURN(Value bytes,
                            library.Bytes(usable ? tokenizer.TokenBytes(id) : std::string_view()));
    views.push_back(bytes.view());
    tokens.push_back(std::move(bytes));
  }
  return library.Call(library.methods().make_array, views);
}

absl::StatusOr<Value> MakeIds(const XGrammarLibrary& library, std::span<const int32_t> ids) {
  std::vector<abi::Any> views;
  for (const int32_t id : ids) {
    views.push_back(IntArgument(id));
  }
  return library.Call(library.methods().make_array, views);
}

}  // namespace

class CompiledGrammar {
 public:
  CompiledGrammar(const XGrammarLibrary* library, Value value, size_t bytes)
      : library_(library), value_(std::move(value)), bytes_(bytes) {}
  const XGrammarLibrary& library() const { return *library_; }
  const Value& value() const { return value_; }
  size_t bytes() const { return bytes_; }

 private:
  const XGrammarLibrary* library_;
  Value value_;
  size_t bytes_;
};

size_t CompiledBytes(const CompiledGrammar& grammar) { return grammar.bytes(); }

struct GrammarCompiler::State {
  const XGrammarLibrary* library = nullptr;
  Value compiler;
};

GrammarCompiler::GrammarCompiler() : state_(std::make_unique<State>()) {}
GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(
    const tokenizer::Tokenizer& tokenizer, int32_t vocab_size,
    std::span<const int32_t> eos_token_ids) {
  if (eos_token_ids.empty()) {
    return absl::UnimplementedError(
        "structured output is not available: the model has no end token");
  }
  TANDEM_ASSIGN_OR_RETURN(const XGrammarLibrary* library, XGrammarLibrary::Get());
  TANDEM_ASSIGN_OR_RETURN(const Value vocabulary, MakeVocabulary(*library, tokenizer, vocab_size));
  TANDEM_ASSIGN_OR_RETURN(const Value stops, MakeIds(*library, eos_token_ids));
  const abi::Any info_arguments[] = {vocabulary.view(), IntArgument(kRawVocabulary),
                                     IntArgument(vocab_size), stops.view(), BoolArgument(false)};
  TANDEM_ASSIGN_OR_RETURN(const Value info,
                          library->Call(library->methods().make_tokenizer_info, info_arguments));
  // One thread, no cache (ours is bounded), all masks made now rather than during steps.
  const abi::Any arguments[] = {info.view(), IntArgument(1), BoolArgument(false), IntArgument(-1),
                                BoolArgument(false)};
  std::unique_ptr<GrammarCompiler> compiler(new GrammarCompiler());
  compiler->state_->library = library;
  TANDEM_ASSIGN_OR_RETURN(compiler->state_->compiler,
                          library->Call(library->methods().make_compiler, arguments));
  return compiler;
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::Compile(
    const std::string& ebnf) const {
  if (ebnf.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("the grammar holds a zero byte");
  }
  const XGrammarLibrary& library = *state_->library;
  const std::string root = "root";
  const abi::Any arguments[] = {state_->compiler.view(), TextArgument(ebnf), TextArgument(root)};
  TANDEM_ASSIGN_OR_RETURN(Value grammar, library.Call(library.methods().compile_ebnf, arguments));
  const abi::Any self[] = {grammar.view()};
  TANDEM_ASSIGN_OR_RETURN(const Value bytes, library.Call(library.methods().grammar_bytes, self));
  return std::make_shared<const CompiledGrammar>(&library, std::move(grammar),
                                                 static_cast<size_t>(bytes.as_int()));
}

struct GrammarMatcher::State {
  std::shared_ptr<const CompiledGrammar> grammar;
  Value matcher;
};

GrammarMatcher::GrammarMatcher() : state_(std::make_unique<State>()) {}
GrammarMatcher::~GrammarMatcher() = default;

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarMatcher::Create(
    std::shared_ptr<const CompiledGrammar> grammar) {
  const XGrammarLibrary& library = grammar->library();
  const abi::Any arguments[] = {grammar->value().view(), abi::Any(), BoolArgument(false),
                                IntArgument(-1), abi::Any()};
  std::unique_ptr<GrammarMatcher> matcher(new GrammarMatcher());
  TANDEM_ASSIGN_OR_RETURN(matcher->state_->matcher,
                          library.Call(library.methods().make_matcher, arguments));
  matcher->state_->grammar = std::move(grammar);
  return matcher;
}

bool GrammarMatcher::Accept(int32_t token) {
  const XGrammarLibrary& library = state_->grammar->library();
  const abi::Any arguments[] = {state_->matcher.view(), IntArgument(token), BoolArgument(false)};
  const absl::StatusOr<Value> accepted = library.Call(library.methods().accept_token, arguments);
  return accepted.ok() && accepted->as_bool();
}

bool GrammarMatcher::AcceptText(std::string_view text) {
  const XGrammarLibrary& library = state_->grammar->library();
  const absl::StatusOr<Value> bytes = library.Bytes(text);
  if (!bytes.ok()) {
    return false;
  }
  const abi::Any arguments[] = {state_->matcher.view(), bytes->view(), BoolArgument(false)};
  const absl::StatusOr<Value> accepted = library.Call(library.methods().accept_string, arguments);
  return accepted.ok() && accepted->as_bool();
}

bool GrammarMatcher::IsComplete() const {
  const XGrammarLibrary& library = state_->grammar->library();
  const abi::Any arguments[] = {state_->matcher.view()};
  const absl::StatusOr<Value> complete = library.Call(library.methods().is_completed, arguments);
  return complete.ok() && complete->as_bool();
}

bool GrammarMatcher::FillMask(std::span<uint32_t> mask) const {
  const XGrammarLibrary& library = state_->grammar->library();
  int64_t shape[] = {1, static_cast<int64_t>(mask.size())};
  int64_t strides[] = {static_cast<int64_t>(mask.size()), 1};
  abi::Tensor tensor = {};
  tensor.data = mask.data();
  tensor.device = {abi::kCpuDevice, 0};
  tensor.num_dimensions = 2;
  tensor.dtype = {0, 32, 1};  // int32
  tensor.shape = shape;
  tensor.strides = strides;
  abi::Any view;
  view.type_index = abi::kTensorPtr;
  view.as_pointer = &tensor;
  const abi::Any arguments[] = {state_->matcher.view(), view, IntArgument(0), BoolArgument(false)};
  return library.Call(library.methods().fill_bitmask, arguments).ok();
}

void GrammarMatcher::Reset() {
  const XGrammarLibrary& library = state_->grammar->library();
  const abi::Any arguments[] = {state_->matcher.view()};
  const absl::Status status = library.Call(library.methods().reset, arguments).status();
  status.IgnoreError();  // it only fails for arguments of a wrong type
}

}  // namespace tandem::structured_output
