#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "router/frontend/chat_template/tainted_text.h"

namespace tandem::chat_template {

class Value;
class Interpreter;

// Integers beyond 64 bits are rare but must not wrap; beyond 128 bits they are errors.
using Integer = __int128;

// What a call site passes.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument `name` or the one at `index`; null when neither is given.
  const Value* Find(size_t index, std::string_view name) const;
};

// Something that can be called; nothing comes back when it failed (the interpreter knows why).
using Function = std::function<Value(Interpreter&, const Arguments&)>;

// A dict in insertion order, as Python has it.
class Dict {
 public:
  const std::vector<std::pair<Value, Value>>& entries() const;
  size_t size() const;
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  void Set(Value key, Value value);
  int depth() const { return depth_; }

 private:
  static std::string IndexKey(const Value& key);

  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;
  int depth_ = 1;
};

// What stands where nothing was found. `message` is the error of using it.
struct Undefined {
  std::string message;
  bool unsafe = false;  // the sandbox hid an attribute
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  // of nested lists and dicts
};

// The one kind of value that a template may change (`{% set ns.x = ... %}`).
struct Namespace {
  std::unordered_map<std::string, Value> attributes;
};

struct Callable {
  std::string name;
  Function function;
  bool is_macro = false;
  int depth = 0;  // of what it is bound to
};

// The `loop` of a for. Items are all known.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 1;
  Function recurse;                     // empty unless the for is recursive
  std::shared_ptr<Value> last_changed;  // null until changed() is asked
};

struct Range {
  int64_t start = 0, stop = 0, step = 1, count = 0;
  bool operator==(const Range&) const = default;
};

// An immutable value of the template language, with Python's meaning; cheap to copy.
class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace,
    kCallable,
    kLoop,
    kRange
  };

  Value();  // undefined
  static Value None() { return Value(Data(std::monostate())); }
  static Value Of(bool value) { return Value(Data(value)); }
  static Value Of(Integer value) { return Value(Data(value)); }
  static Value Of(int value) { return Value(Data(Integer{value})); }
  static Value Of(int64_t value) { return Value(Data(Integer{value})); }
  static Value Of(size_t value) { return Value(Data(static_cast<Integer>(value))); }
  static Value Of(double value) { return Value(Data(value)); }
  static Value Of(TaintedText text) {
    return Value(Data(std::make_shared<const TaintedText>(std::move(text))));
  }
  static Value Trusted(std::string_view text) { return Of(TaintedText(text, true)); }
  static Value Of(std::shared_ptr<const List> list) { return Value(Data(std::move(list))); }
  static Value ListOf(std::vector<Value> items);
  static Value TupleOf(std::vector<Value> items);
  static Value Of(std::shared_ptr<const Dict> dict) { return Value(Data(std::move(dict))); }
  static Value Of(std::shared_ptr<Namespace> space) { return Value(Data(std::move(space))); }
  static Value Of(std::shared_ptr<const Callable> callable) {
    return Value(Data(std::move(callable)));
  }
  // `depth`: of the value that the function holds, if any.
  static Value FunctionOf(std::string name, Function function, int depth = 0);
  static Value Of(std::shared_ptr<Loop> loop) { return Value(Data(std::move(loop))); }
  static Value Of(Range range) { return Value(Data(range)); }
  static Value UndefinedOf(std::string message, bool unsafe = false);

  Kind kind() const;
  bool is(Kind k) const { return kind() == k; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_string() const { return is(Kind::kString); }
  // Python's bool is an int.
  bool is_integral() const { return is(Kind::kInteger) || is(Kind::kBool); }
  bool is_number() const { return is_integral() || is(Kind::kFloat); }
  bool is_tuple() const { return is(Kind::kList) && list().tuple; }

  const Undefined& undefined() const { return *std::get<std::shared_ptr<const Undefined>>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  Integer integer() const;  // of a bool too
  double number() const;    // of any number
  const TaintedText& string() const { return *std::get<std::shared_ptr<const TaintedText>>(data_); }
  const std::string& text() const { return string().text(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  std::shared_ptr<const List> shared_list() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  std::shared_ptr<Loop> loop() const { return std::get<std::shared_ptr<Loop>>(data_); }
  const Range& range() const { return std::get<Range>(data_); }

  bool Truthy() const;
  // How deep values are nested in it: lists, dicts, bound methods, loops; 0 for any other value.
  // (Namespaces and macros may form cycles; the interpreter keeps them apart.)
  int Depth() const;
  // Python's ==. Structures of more than a million parts compare as different: equal parts may be
  // shared, so that time is no measure of memory.
  static bool Equal(const Value& a, const Value& b);
  // Name of the Python type, for messages: "str", "int", "NoneType" ...
  std::string_view TypeName() const;

 private:
  using Data =
      std::variant<std::monostate, bool, Integer, double, std::shared_ptr<const TaintedText>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                   std::shared_ptr<Loop>, Range, std::shared_ptr<const Undefined>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  static bool EqualWithin(const Value& a, const Value& b, int64_t* budget);

  Data data_;
};

inline const std::vector<std::pair<Value, Value>>& Dict::entries() const { return entries_; }
inline size_t Dict::size() const { return entries_.size(); }

}  // namespace tandem::chat_template
