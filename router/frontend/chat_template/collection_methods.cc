// Methods of dict and list, and the functions that every template knows.
#include <algorithm>
#include <array>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/python_text.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same

Value DictGet(const Dict& dict, Interpreter& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return self.FailType("TypeError: get expected a key");
  const Value* found = dict.Find(arguments.positional[0]);
  if (found != nullptr) return *found;
  return arguments.positional.size() > 1 ? arguments.positional[1] : Value::None();
}

Value DictItems(const Dict& dict, Interpreter& self) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) {
    items.push_back(self.MakeList({key, value}, true));
  }
  return self.MakeList(std::move(items));
}

Value DictParts(const Dict& dict, Interpreter& self, bool keys) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) items.push_back(keys ? key : value);
  return self.MakeList(std::move(items));
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value MakeRange(Interpreter& self, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3)
    return self.FailType("TypeError: range expected 1 to 3 arguments");
  std::array<int64_t, 3> bounds = {0, 0, 1};
  for (size_t i = 0; i < given.size(); ++i) {
    constexpr Integer kFar = Integer{1} << 40;
    if (given[i].is_undefined()) return self.FailUndefined(given[i]);
    if (!given[i].is_integral() || given[i].integer() > kFar || given[i].integer() < -kFar) {
      return self.FailType(base::StrCat("TypeError: '", given[i].TypeName(),
                                        "' object cannot be interpreted as an integer"));
    }
    bounds[given.size() == 1 ? 1 : i] = static_cast<int64_t>(given[i].integer());
  }
  Range range{bounds[0], bounds[1], bounds[2], 0};
  if (range.step == 0) return self.FailType("ValueError: range() arg 3 must not be zero");
  const int64_t distance = range.step > 0 ? range.stop - range.start : range.start - range.stop;
  const int64_t stride = range.step > 0 ? range.step : -range.step;
  range.count = distance > 0 ? (distance + stride - 1) / stride : 0;
  if (range.count > kMaxRange) {
    return self.FailType(base::StrCat("OverflowError: Range too big. The sandbox blocks ranges ",
                                      "larger than MAX_RANGE (", kMaxRange, ")."));
  }
  return Value::Of(range);
}

// Fills `dict` with what dict(...) and namespace(...) take: a mapping or pairs, then names.
bool ReadPairs(Interpreter& self, const Arguments& arguments, Dict* dict) {
  if (arguments.positional.size() > 1) {
    self.FailType("TypeError: expected at most 1 argument");
    return false;
  }
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::kDict)) {
      for (const auto& [key, value] : from.dict().entries()) dict->Set(key, value);
    } else {
      const auto pairs = self.Iterate(from);
      if (!pairs) return false;
      for (const Value& pair : *pairs) {
        if (!pair.is(Kind::kList) || pair.list().items.size() != 2) {
          self.FailType("TypeError: cannot convert a sequence to a dict");
          return false;
        }
        dict->Set(pair.list().items[0], pair.list().items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->Set(Value::Trusted(name), value);
  return true;
}

Value MakeDict(Interpreter& self, const Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  return ReadPairs(self, arguments, dict.get()) ? self.MakeDict(std::move(dict)) : Value();
}

Value MakeNamespace(Interpreter& self, const Arguments& arguments) {
  Dict dict;
  if (!ReadPairs(self, arguments, &dict)) return Value();
  Value space = self.MakeNamespace();
  for (const auto& [key, value] : dict.entries()) {
    const std::string name = self.ToText(key).text();
    if (name.starts_with('_')) {
      return self.Fail(ErrorKind::kSecurity,
                       base::StrCat("underscore-prefixed attribute '", name, "' on a namespace"));
    }
    space.space().attributes[name] = value;
  }
  return space;
}

Value RaiseException(Interpreter& self, const Arguments& arguments) {
  const Value* message = arguments.Find(0, "message");
  if (message == nullptr) return self.FailType("TypeError: raise_exception without a message");
  return self.Fail(ErrorKind::kRaised, self.ToText(*message).text());
}

Value StrftimeNow(Interpreter& self, const Arguments& arguments) {
  const Value* format = arguments.Find(0, "format");
  if (format == nullptr || !format->is_string()) {
    return self.FailType("TypeError: strftime_now needs a format");
  }
  return self.MakeString(TaintedText(FormatTime(self.now_unix_s(), format->text()), true));
}

}  // namespace

std::optional<Value> FindDictMethod(const Value& self, std::string_view name) {
  if (!IsOneOf(name, {"get", "items", "keys", "values", "copy"})) return std::nullopt;
  return Value::FunctionOf(
      std::string(name),
      [self, name = std::string(name)](Interpreter& interpreter, const Arguments& arguments) {
        if (name == "get") return DictGet(self.dict(), interpreter, arguments);
        if (name == "items") return DictItems(self.dict(), interpreter);
        if (name == "copy") return self;
        return DictParts(self.dict(), interpreter, name == "keys");
      },
      self.Depth() + 1);
}

std::optional<Value> FindListMethod(const Value& self, std::string_view name) {
  if (name == "copy" && !self.is_tuple()) {
    return Value::FunctionOf(
        "copy", [self](Interpreter&, const Arguments&) { return self; }, self.Depth() + 1);
  }
  if (!IsOneOf(name, {"index", "count"})) return std::nullopt;
  return Value::FunctionOf(
      std::string(name),
      [self, counts = name == "count"](Interpreter& interpreter, const Arguments& arguments) {
        if (arguments.positional.empty()) return interpreter.FailType("TypeError: needs a value");
        int64_t count = 0;
        const auto& items = self.list().items;
        for (size_t i = 0; i < items.size(); ++i) {
          if (!interpreter.Charge(0)) return Value();
          if (!Value::Equal(items[i], arguments.positional[0])) continue;
          if (!counts) return Value::Of(i);
          ++count;
        }
        return counts ? Value::Of(count)
                      : interpreter.FailType("ValueError: the value is not in the list");
      },
      self.Depth() + 1);
}

bool IsMutatingMethod(const Value& self, std::string_view name) {
  if (self.is(Kind::kDict)) {
    return IsOneOf(name, {"clear", "pop", "popitem", "setdefault", "update"});
  }
  return self.is(Kind::kList) && !self.is_tuple() &&
         IsOneOf(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
}

void AddGlobals(Scope* scope) {
  const auto add = [scope](const char* name, Function function) {
    scope->variables[name] = Value::FunctionOf(name, std::move(function));
  };
  add("range", MakeRange);
  add("dict", MakeDict);
  add("namespace", MakeNamespace);
  add("raise_exception", RaiseException);
  add("strftime_now", StrftimeNow);
}

}  // namespace tandem::chat_template
