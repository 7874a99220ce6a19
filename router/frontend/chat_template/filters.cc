// Filters on any value and on numbers; those on texts and on sequences have files of their own.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/number_text.h"
#include "router/frontend/chat_template/python_text.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

Value Default(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* fallback = arguments.Find(0, "default_value");
  const Value* boolean = arguments.Find(1, "boolean");
  const bool also_falsy = boolean != nullptr && boolean->Truthy();
  if (input.is_undefined() || (also_falsy && !input.Truthy())) {
    return fallback != nullptr ? *fallback : Value::Trusted("");
  }
  return input;
}

Value Length(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto length = self.Length(input);
  return length ? Value::Of(*length) : Value();
}

Value String(Interpreter& self, const Value& input, const Arguments& arguments) {
  return input.is_string() ? input : self.MakeString(self.ToText(input));
}

Value Safe(Interpreter& self, const Value& input, const Arguments&) {
  TaintedText text = self.ToText(input);
  text.set_markup();
  return self.MakeString(std::move(text));
}

Value ToJsonFilter(Interpreter& self, const Value& input, const Arguments& arguments) {
  JsonFormat format;
  const auto flag = [&](size_t index, std::string_view name) {
    const Value* value = arguments.Find(index, name);
    return value != nullptr && value->Truthy();
  };
  format.ensure_ascii = flag(0, "ensure_ascii");
  if (const Value* indent = arguments.Find(1, "indent"); indent != nullptr && !indent->is_none()) {
    format.item_separator.assign(1, ',');
    if (indent->is_string()) {
      format.indent = indent->text();
    } else if (indent->is_integral() && indent->integer() <= 64) {
      format.indent =
          std::string(indent->integer() > 0 ? static_cast<size_t>(indent->integer()) : 0, ' ');
    } else {
      return self.FailType("TypeError: indent is no small integer");
    }
  }
  if (const Value* separators = arguments.Find(2, "separators");
      separators != nullptr && !separators->is_none()) {
    const auto parts = self.Iterate(*separators);
    if (!parts) return Value();
    if (parts->size() != 2 || !(*parts)[0].is_string() || !(*parts)[1].is_string()) {
      return self.FailType("TypeError: separators are not two strings");
    }
    format.item_separator = (*parts)[0].text();
    format.key_separator = (*parts)[1].text();
  }
  format.sort_keys = flag(3, "sort_keys");
  auto text = ToJson(self, input, format);
  return text ? self.MakeString(*std::move(text)) : Value();
}

Value Int(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "default");
  Value fallback = given != nullptr ? *given : Value::Of(0);
  const Value* base = arguments.Find(1, "base");
  if (input.is_integral()) return Value::Of(input.integer());
  if (input.is(Kind::kFloat)) {
    const auto whole = IntegerOfFloat(input.number());
    return whole ? Value::Of(*whole) : fallback;
  }
  if (!input.is_string()) return fallback;
  const int64_t radix =
      base != nullptr && base->is_integral() ? static_cast<int64_t>(base->integer()) : 10;
  if (const auto parsed = ParseInteger(input.text(), static_cast<int>(radix))) {
    return Value::Of(*parsed);
  }
  const auto number = ParseFloat(input.text());
  const auto whole = number ? IntegerOfFloat(*number) : std::nullopt;
  return whole ? Value::Of(*whole) : fallback;
}

Value Float(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "default");
  if (input.is_number()) return Value::Of(input.number());
  if (input.is_string()) {
    if (const auto parsed = ParseFloat(input.text())) return Value::Of(*parsed);
  }
  return given != nullptr ? *given : Value::Of(0.0);
}

Value Abs(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) return self.FailUndefined(input);
  if (input.is(Kind::kFloat)) return Value::Of(std::fabs(input.number()));
  if (!input.is_integral()) {
    return self.FailType(
        base::StrCat("TypeError: bad operand type for abs(): '", input.TypeName(), "'"));
  }
  return input.integer() < 0 ? self.Binary("-", Value::Of(0), input) : Value::Of(input.integer());
}

Value Round(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) return self.FailUndefined(input);
  const Value* given = arguments.Find(0, "precision");
  const Value* method = arguments.Find(1, "method");
  if (!input.is_number() || (given != nullptr && !given->is_integral())) {
    return self.FailType("TypeError: round of something that is no number");
  }
  const Integer precision = given != nullptr ? given->integer() : Integer{0};
  if (precision < -300 || precision > 300) return self.FailType("ValueError: precision");
  const std::string how = method != nullptr && method->is_string() ? method->text() : "common";
  if (how != "common" && how != "ceil" && how != "floor") {
    return self.Fail(ErrorKind::kOther,
                     "FilterArgumentError: method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value::Of(std::ceil(input.number() * scale) / scale);
  if (how == "floor") return Value::Of(std::floor(input.number() * scale) / scale);
  if (input.is_integral() && precision >= 0) return Value::Of(input.integer());
  if (input.is_integral() || precision < 0) {
    const double rounded = std::nearbyint(input.number() * scale) / scale;
    const auto whole = IntegerOfFloat(rounded);
    return input.is_integral() && whole ? Value::Of(*whole) : Value::Of(rounded);
  }
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), input.number());
  return Value::Of(std::strtod(buffer, nullptr));
}

Value Attr(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* name = arguments.Find(0, "name");
  if (name == nullptr) return self.FailType("TypeError: attr without a name");
  if (input.is_undefined()) return self.FailUndefined(input);
  if (input.is(Kind::kDict)) {  // attributes only, no keys
    Value found =
        self.Attribute(self.MakeDict(std::make_shared<Dict>()), self.ToText(*name).text());
    return found;
  }
  return self.Attribute(input, self.ToText(*name).text());
}

const std::map<std::string_view, Filter>& Filters() {
  static const auto& filters = *new std::map<std::string_view, Filter>{
      {"abs", Abs},         {"attr", Attr},   {"count", Length},  {"d", Default},
      {"default", Default}, {"float", Float}, {"int", Int},       {"length", Length},
      {"round", Round},     {"safe", Safe},   {"string", String}, {"tojson", ToJsonFilter}};
  return filters;
}

}  // namespace

Filter FindFilter(std::string_view name) {
  const auto it = Filters().find(name);
  if (it != Filters().end()) return it->second;
  if (const Filter filter = FindTextFilter(name)) return filter;
  return FindSequenceFilter(name);
}

Value Interpreter::ApplyFilter(const std::string& name, const Value& input,
                               const Arguments& arguments) {
  const Filter filter = FindFilter(name);
  if (filter == nullptr) {
    return Fail(ErrorKind::kSyntax, base::StrCat("No filter named '", name, "'."));
  }
  if (!Charge(0)) return Value();
  if (input.is_undefined() && input.undefined().unsafe && name != "default" && name != "d") {
    return FailUndefined(input);
  }
  return filter(*this, input, arguments);
}

}  // namespace tandem::chat_template
