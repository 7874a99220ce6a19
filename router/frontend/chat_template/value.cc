#include "router/frontend/chat_template/value.h"

#include <algorithm>

namespace tandem::chat_template {

const Value* Arguments::Find(size_t index, std::string_view name) const {
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return index < positional.size() ? &positional[index] : nullptr;
}

std::string Dict::IndexKey(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kString:
      return std::string(1, 's').append(key.text());
    case Value::Kind::kBool:
    case Value::Kind::kInteger:
    case Value::Kind::kFloat:
      return std::string(1, 'n').append(std::to_string(key.number()));
    default:
      return "o";
  }
}

const Value* Dict::Find(const Value& key) const {
  if (key.is_string()) return Find(key.text());
  const auto it = index_.find(IndexKey(key));
  if (it != index_.end() && Value::Equal(entries_[it->second].first, key)) {
    return &entries_[it->second].second;
  }
  for (const auto& [own, value] : entries_) {  // tuples and such, all under one index key
    if (!own.is_string() && Value::Equal(own, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  std::string index_key = "s";
  index_key.append(key);
  const auto it = index_.find(index_key);
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

void Dict::Set(Value key, Value value) {
  depth_ = std::max(depth_, 1 + std::max(key.Depth(), value.Depth()));
  const std::string index_key = IndexKey(key);
  const auto it = index_.find(index_key);
  if (it != index_.end() && Value::Equal(entries_[it->second].first, key)) {
    entries_[it->second].second = std::move(value);
    return;
  }
  if (it == index_.end()) {
    index_.emplace(index_key, entries_.size());
  } else {
    for (auto& [own, old] : entries_) {
      if (Value::Equal(own, key)) {
        old = std::move(value);
        return;
      }
    }
  }
  entries_.emplace_back(std::move(key), std::move(value));
}

namespace {

std::shared_ptr<const List> MakeList(std::vector<Value> items, bool tuple) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.Depth());
  return std::make_shared<const List>(List{std::move(items), tuple, depth + 1});
}

}  // namespace

Value Value::ListOf(std::vector<Value> items) { return Of(MakeList(std::move(items), false)); }

Value Value::TupleOf(std::vector<Value> items) { return Of(MakeList(std::move(items), true)); }

int Value::Depth() const {
  switch (kind()) {
    case Kind::kList:
      return list().depth;
    case Kind::kDict:
      return dict().depth();
    case Kind::kCallable:
      return callable().depth;
    case Kind::kLoop:
      return loop()->items->depth + 1;
    default:
      return 0;
  }
}

Value::Value() {
  static const auto& nothing = *new auto(std::make_shared<const Undefined>());
  data_ = nothing;
}

Value Value::FunctionOf(std::string name, Function function, int depth) {
  return Of(std::make_shared<const Callable>(
      Callable{std::move(name), std::move(function), false, depth}));
}

Value Value::UndefinedOf(std::string message, bool unsafe) {
  return Value(Data(std::make_shared<const Undefined>(Undefined{std::move(message), unsafe})));
}

Value::Kind Value::kind() const {
  constexpr Kind kKinds[] = {Kind::kNone,     Kind::kBool, Kind::kInteger, Kind::kFloat,
                             Kind::kString,   Kind::kList, Kind::kDict,    Kind::kNamespace,
                             Kind::kCallable, Kind::kLoop, Kind::kRange,   Kind::kUndefined};
  return kKinds[data_.index()];
}

Integer Value::integer() const {
  return is(Kind::kBool) ? Integer{boolean() ? 1 : 0} : std::get<Integer>(data_);
}

double Value::number() const {
  return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::Truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return boolean();
    case Kind::kInteger:
      return integer() != 0;
    case Kind::kFloat:
      return number() != 0;
    case Kind::kString:
      return !string().empty();
    case Kind::kList:
      return !list().items.empty();
    case Kind::kDict:
      return dict().size() > 0;
    case Kind::kRange:
      return range().count > 0;
    default:
      return true;
  }
}

bool Value::Equal(const Value& a, const Value& b) {
  int64_t budget = 1'000'000;
  return EqualWithin(a, b, &budget);
}

bool Value::EqualWithin(const Value& a, const Value& b, int64_t* budget) {
  if (--*budget <= 0) return false;
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() == b.integer()
                                              : a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.text() == b.text();
    case Kind::kList:
      return a.list().tuple == b.list().tuple &&
             std::equal(a.list().items.begin(), a.list().items.end(), b.list().items.begin(),
                        b.list().items.end(),
                        [&](const Value& x, const Value& y) { return EqualWithin(x, y, budget); });
    case Kind::kDict:
      return a.dict().size() == b.dict().size() &&
             std::all_of(a.dict().entries().begin(), a.dict().entries().end(),
                         [&](const auto& entry) {
                           const Value* other = b.dict().Find(entry.first);
                           return other != nullptr && EqualWithin(entry.second, *other, budget);
                         });
    case Kind::kRange:
      return a.range().count == b.range().count &&
             (a.range().count == 0 || (a.range().start == b.range().start &&
                                       (a.range().count == 1 || a.range().step == b.range().step)));
    default:
      return a.data_ == b.data_;  // the same object
  }
}

std::string_view Value::TypeName() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return is_tuple() ? "tuple" : "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return callable().is_macro ? "Macro" : "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kRange:
      return "range";
  }
  return "object";
}

}  // namespace tandem::chat_template
