// Attributes, items, slices, iteration: what values give when they are taken apart.
#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/interpreter.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/python_text.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

// Jinja's name of an object in messages.
std::string ObjectName(const Value& value) {
  if (value.is_none()) return "None";
  return base::StrCat(value.TypeName(), " object");
}

Value NoAttribute(const Value& value, const std::string& name) {
  return Value::UndefinedOf(
      base::StrCat("'", ObjectName(value), "' has no attribute '", name, "'"));
}

Value UnsafeAttribute(const Value& value, const std::string& name) {
  return Value::UndefinedOf(base::StrCat("access to attribute '", name, "' of '", value.TypeName(),
                                         "' object is unsafe."),
                            true);
}

// Python's own attributes of a value, as far as templates may see them; nothing: there is none.
std::optional<Value> PythonAttribute(const Value& value, const std::string& name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) {
    return UnsafeAttribute(value, name);
  }
  if (IsMutatingMethod(value, name)) return UnsafeAttribute(value, name);
  switch (value.kind()) {
    case Kind::kString:
      return FindStringMethod(value, name);
    case Kind::kDict:
      return FindDictMethod(value, name);
    case Kind::kList:
      return FindListMethod(value, name);
    case Kind::kRange:
      if (name == "start") return Value::Of(value.range().start);
      if (name == "stop") return Value::Of(value.range().stop);
      if (name == "step") return Value::Of(value.range().step);
      return std::nullopt;
    case Kind::kCallable:
      if (name == "name" && value.callable().is_macro) {
        return Value::Trusted(value.callable().name);
      }
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// Code points of a text as offsets of their bytes, with the end as the last one.
std::vector<size_t> CodePointOffsets(const std::string& text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size();
       at += static_cast<size_t>(tokenizer::DecodeUtf8(text, at).bytes)) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

struct SliceBounds {
  int64_t start = 0, step = 1, count = 0;
};

int64_t Clamped(const Value& value) {
  const Integer integer = value.integer();
  constexpr Integer kFar = Integer{1} << 40;
  return static_cast<int64_t>(std::clamp(integer, -kFar, kFar));
}

// Python's slice.indices().
SliceBounds BoundsOf(int64_t size, const Value& start, const Value& stop, int64_t step) {
  const int64_t lowest = step < 0 ? -1 : 0;
  const int64_t highest = step < 0 ? size - 1 : size;
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t at = Clamped(value);
    if (at < 0) at += size;
    return std::clamp(at, lowest, highest);
  };
  const int64_t from = place(start, step < 0 ? highest : lowest);
  const int64_t to = place(stop, step < 0 ? lowest : highest);
  const int64_t distance = step < 0 ? from - to : to - from;
  const int64_t stride = step < 0 ? -step : step;
  return {from, step, distance <= 0 ? 0 : (distance + stride - 1) / stride};
}

}  // namespace

Value Interpreter::Attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) return FailUndefined(value);
  if (value.is(Kind::kLoop)) return LoopAttribute(value.loop(), name);
  if (value.is(Kind::kNamespace)) {
    const auto& attributes = value.space().attributes;
    const auto it = attributes.find(name);
    if (it != attributes.end()) return it->second;
  }
  if (const auto found = PythonAttribute(value, name)) return *found;
  if (value.is(Kind::kDict)) {
    if (const Value* item = value.dict().Find(name)) return *item;
  }
  return NoAttribute(value, name);
}

Value Interpreter::Subscript(const Value& value, const Value& key) {
  if (value.is_undefined()) return FailUndefined(value);
  if (value.is(Kind::kDict)) {
    if (const Value* item = value.dict().Find(key)) return *item;
  } else if (key.is_integral() &&
             (value.is(Kind::kList) || value.is_string() || value.is(Kind::kRange))) {
    const auto length = Length(value);
    if (!length) return Value();
    int64_t at = Clamped(key);
    const auto size = static_cast<int64_t>(*length);
    if (at < 0) at += size;
    if (at >= 0 && at < size) {
      if (value.is(Kind::kList)) return value.list().items[static_cast<size_t>(at)];
      if (value.is(Kind::kRange)) return Value::Of(value.range().start + at * value.range().step);
      return Slice(value, Value::Of(at), Value::Of(at + 1), Value::None());
    }
  }
  if (key.is_string()) {
    if (value.is(Kind::kLoop) || value.is(Kind::kNamespace)) return Attribute(value, key.text());
    if (const auto found = PythonAttribute(value, key.text())) return *found;
    return NoAttribute(value, key.text());
  }
  if (key.is_undefined() && key.undefined().unsafe) return FailUndefined(key);
  return Value::UndefinedOf(
      base::StrCat(ObjectName(value), " has no element ", ToRepr(key).text()));
}

Value Interpreter::Slice(const Value& value, const Value& start, const Value& stop,
                         const Value& step) {
  if (value.is_undefined()) return FailUndefined(value);
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_none() && !part->is_integral()) {
      return FailType("TypeError: slice indices must be integers or None");
    }
  }
  const int64_t stride = step.is_none() ? 1 : Clamped(step);
  if (stride == 0) return FailType("ValueError: slice step cannot be zero");
  if (value.is_string()) {
    const TaintedText& text = value.string();
    if (!Charge(text.size())) return Value();
    const std::vector<size_t> offsets = CodePointOffsets(text.text());
    const auto bounds = BoundsOf(static_cast<int64_t>(offsets.size()) - 1, start, stop, stride);
    if (bounds.count == 0) return Value::Trusted("");
    const auto first = static_cast<size_t>(bounds.start);
    if (stride == 1) {
      return MakeString(
          text.Part(offsets[first], offsets[first + static_cast<size_t>(bounds.count)]));
    }
    TaintedText out;
    for (int64_t i = 0; i < bounds.count; ++i) {
      const auto at = static_cast<size_t>(bounds.start + i * stride);
      out.Append(text, offsets[at], offsets[at + 1]);
    }
    return MakeString(std::move(out));
  }
  if (!value.is(Kind::kList) && !value.is(Kind::kRange)) {
    if (value.is(Kind::kDict)) return FailType("TypeError: unhashable type: 'slice'");
    return NoAttribute(value, "slice");
  }
  const auto items = Iterate(value);
  if (!items) return Value();
  const auto bounds = BoundsOf(static_cast<int64_t>(items->size()), start, stop, stride);
  std::vector<Value> out;
  for (int64_t i = 0; i < bounds.count; ++i) {
    out.push_back((*items)[static_cast<size_t>(bounds.start + i * stride)]);
  }
  return MakeList(std::move(out), value.is_tuple());
}

std::optional<std::vector<Value>> Interpreter::Iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kList:
      if (!Charge(value.list().items.size() * sizeof(Value))) return std::nullopt;
      return value.list().items;
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().entries()) items.push_back(key);
      break;
    case Kind::kString: {
      const TaintedText& text = value.string();
      // Each character is a text of its own.
      if (!Charge(text.size() * (sizeof(Value) + sizeof(TaintedText)))) return std::nullopt;
      const std::vector<size_t> offsets = CodePointOffsets(text.text());
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        items.push_back(Value::Of(text.Part(offsets[i], offsets[i + 1])));
      }
      break;
    }
    case Kind::kRange:
      for (int64_t i = 0; i < value.range().count; ++i) {
        items.push_back(Value::Of(value.range().start + i * value.range().step));
      }
      break;
    case Kind::kUndefined:
      if (value.undefined().unsafe) {
        FailUndefined(value);
        return std::nullopt;
      }
      break;
    default:
      FailType(base::StrCat("TypeError: '", value.TypeName(), "' object is not iterable"));
      return std::nullopt;
  }
  if (!Charge(items.size() * sizeof(Value))) return std::nullopt;
  return items;
}

std::optional<size_t> Interpreter::Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
      return value.list().items.size();
    case Kind::kDict:
      return value.dict().size();
    case Kind::kString: {
      if (!Charge(value.string().size())) return std::nullopt;
      size_t count = 0;
      for (const char c : value.text()) count += (static_cast<uint8_t>(c) & 0xC0u) != 0x80u ? 1 : 0;
      return count;
    }
    case Kind::kRange:
      return static_cast<size_t>(value.range().count);
    case Kind::kLoop:
      return value.loop()->items->items.size();
    case Kind::kUndefined:
      if (!value.undefined().unsafe) return 0;
      FailUndefined(value);
      return std::nullopt;
    default:
      FailType(base::StrCat("TypeError: object of type '", value.TypeName(), "' has no len()"));
      return std::nullopt;
  }
}

}  // namespace tandem::chat_template
