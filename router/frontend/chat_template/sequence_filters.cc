#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/strings.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/text_operations.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;
using Items = std::vector<Value>;

bool Flag(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && value->Truthy();
}

// Arguments from the `count`th on, as for a filter or test that is named by the ones before.
Arguments After(const Arguments& arguments, size_t count) {
  Arguments rest;
  for (size_t i = count; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  rest.named = arguments.named;
  return rest;
}

// item.attribute for "a.b.0"; `fallback` (may be null) in place of an undefined one.
Value Look(Interpreter& self, Value item, const Value& attribute, const Value* fallback) {
  if (!attribute.is_string()) {
    item = self.Subscript(item, attribute);
  } else {
    for (const TaintedText& part : Split(attribute.string(), std::string("."), -1)) {
      int64_t index = 0;
      const bool is_index = absl::SimpleAtoi(part.text(), &index);
      item = self.Subscript(item, is_index ? Value::Of(index) : Value::Of(part));
      if (self.failed()) return Value();
      if (item.is_undefined() && fallback != nullptr) break;
    }
  }
  return item.is_undefined() && fallback != nullptr ? *fallback : item;
}

// What items are sorted, grouped and told apart by: texts without regard to case.
Value SortKey(Interpreter& self, const Value& item, bool case_sensitive) {
  return item.is_string() && !case_sensitive ? self.MakeString(Lower(item.string())) : item;
}

// A stable sort of indices by keys; nothing after an error.
std::optional<std::vector<size_t>> SortedOrder(Interpreter& self, const Items& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // After an error all compare as equal, which is a valid order.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (self.failed() || !self.Charge(0)) return false;
    return (reverse ? self.Less(keys[b], keys[a]) : self.Less(keys[a], keys[b])).value_or(false);
  });
  if (self.failed()) return std::nullopt;
  return order;
}

Value First(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  return items->empty() ? Value::UndefinedOf("No first item, sequence was empty.") : items->front();
}

Value Last(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  return items->empty() ? Value::UndefinedOf("No last item, sequence was empty.") : items->back();
}

Value ToList(Interpreter& self, const Value& input, const Arguments& arguments) {
  auto items = self.Iterate(input);
  return items ? self.MakeList(*std::move(items)) : Value();
}

Value Reverse(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (input.is_string()) {
    return self.Slice(input, Value::None(), Value::None(), Value::Of(-1));
  }
  auto items = self.Iterate(input);
  if (!items) return Value();
  std::reverse(items->begin(), items->end());
  return self.MakeList(*std::move(items));
}

Value Join(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "d");
  const Value* attribute = arguments.Find(1, "attribute");
  const TaintedText separator = given != nullptr ? self.ToText(*given) : TaintedText();
  const auto items = self.Iterate(input);
  if (!items) return Value();
  TaintedText out;
  for (size_t i = 0; i < items->size(); ++i) {
    const Value item = attribute != nullptr && !attribute->is_none()
                           ? Look(self, (*items)[i], *attribute, nullptr)
                           : (*items)[i];
    const TaintedText text = self.ToText(item);
    if (self.failed() || !self.Charge(text.size() + separator.size())) return Value();
    if (i > 0) out.Append(separator);
    out.Append(text);
  }
  return self.MakeString(std::move(out));
}

Value ItemsFilter(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) return self.MakeList({});
  if (!input.is(Kind::kDict))
    return self.FailType("TypeError: Can only get item pairs from a mapping.");
  Items items;
  for (const auto& [key, value] : input.dict().entries()) {
    items.push_back(self.MakeList({key, value}, true));
  }
  return self.MakeList(std::move(items));
}

Value DictSort(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* by = arguments.Find(1, "by");
  if (!input.is(Kind::kDict)) {
    return self.FailType(base::StrCat("TypeError: dictsort of a ", input.TypeName()));
  }
  const bool by_value = by != nullptr && by->is_string() && by->text() == "value";
  const bool case_sensitive = Flag(arguments, 0, "case_sensitive");
  Items keys;
  Items pairs;
  for (const auto& [key, value] : input.dict().entries()) {
    keys.push_back(SortKey(self, by_value ? value : key, case_sensitive));
    pairs.push_back(self.MakeList({key, value}, true));
  }
  const auto order = SortedOrder(self, keys, Flag(arguments, 2, "reverse"));
  if (!order) return Value();
  Items sorted;
  for (const size_t i : *order) sorted.push_back(pairs[i]);
  return self.MakeList(std::move(sorted));
}

Value Sort(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const bool case_sensitive = Flag(arguments, 1, "case_sensitive");
  const Value* attribute = arguments.Find(2, "attribute");
  Items keys;
  for (const Value& item : *items) {
    if (attribute == nullptr || attribute->is_none()) {
      keys.push_back(SortKey(self, item, case_sensitive));
      continue;
    }
    Items parts;
    if (attribute->is_string()) {
      for (const TaintedText& name : Split(attribute->string(), std::string(","), -1)) {
        parts.push_back(SortKey(self, Look(self, item, Value::Of(name), nullptr), case_sensitive));
      }
    } else {
      parts.push_back(SortKey(self, Look(self, item, *attribute, nullptr), case_sensitive));
    }
    keys.push_back(self.MakeList(std::move(parts)));
    if (self.failed()) return Value();
  }
  const auto order = SortedOrder(self, keys, Flag(arguments, 0, "reverse"));
  if (!order) return Value();
  Items sorted;
  for (const size_t i : *order) sorted.push_back((*items)[i]);
  return self.MakeList(std::move(sorted));
}

Value Unique(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const Value* attribute = arguments.Find(1, "attribute");
  Dict seen;
  Items out;
  for (const Value& item : *items) {
    const Value looked = attribute != nullptr && !attribute->is_none()
                             ? Look(self, item, *attribute, nullptr)
                             : item;
    const Value key = SortKey(self, looked, Flag(arguments, 0, "case_sensitive"));
    if (self.failed()) return Value();
    // Keys that are no texts or numbers are compared one by one.
    if (!self.Charge(key.is_string() || key.is_number() ? 0 : out.size())) return Value();
    if (seen.Find(key) != nullptr) continue;
    seen.Set(key, Value::None());
    out.push_back(item);
  }
  return self.MakeList(std::move(out));
}

template <bool kMax>
Value Extreme(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const Value* attribute = arguments.Find(1, "attribute");
  if (items->empty()) return Value::UndefinedOf("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    const Value looked = attribute != nullptr && !attribute->is_none()
                             ? Look(self, item, *attribute, nullptr)
                             : item;
    return SortKey(self, looked, Flag(arguments, 0, "case_sensitive"));
  };
  size_t best = 0;
  Value best_key = key_of(items->front());
  for (size_t i = 1; i < items->size(); ++i) {
    const Value key = key_of((*items)[i]);
    const auto better = kMax ? self.Less(best_key, key) : self.Less(key, best_key);
    if (!better) return Value();
    if (*better) {
      best = i;
      best_key = key;
    }
  }
  return (*items)[best];
}

Value Sum(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* start = arguments.Find(1, "start");
  Value total = start != nullptr ? *start : Value::Of(0);
  for (const Value& item : *items) {
    const Value looked = attribute != nullptr && !attribute->is_none()
                             ? Look(self, item, *attribute, nullptr)
                             : item;
    total = self.Binary("+", total, looked);
    if (self.failed()) return Value();
  }
  return total;
}

// Jinja's map and select look at nothing where the input is false in a condition: none is no error.
Value Map(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (!input.Truthy()) return self.MakeList({});
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") fallback = &value;
  }
  if (attribute == nullptr &&
      (arguments.positional.empty() || !arguments.positional[0].is_string())) {
    return self.Fail(ErrorKind::kOther, "FilterArgumentError: map requires a filter argument");
  }
  const Arguments rest = After(arguments, 1);
  Items out;
  for (const Value& item : *items) {
    out.push_back(attribute != nullptr
                      ? Look(self, item, *attribute, fallback)
                      : self.ApplyFilter(arguments.positional[0].text(), item, rest));
    if (self.failed()) return Value();
  }
  return self.MakeList(std::move(out));
}

// select, reject, selectattr, rejectattr.
template <bool kKeep, bool kAttribute>
Value Select(Interpreter& self, const Value& input, const Arguments& arguments) {
  if (!input.Truthy()) return self.MakeList({});
  const auto items = self.Iterate(input);
  if (!items) return Value();
  const size_t test_at = kAttribute ? 1 : 0;
  if (kAttribute && arguments.positional.empty()) {
    return self.Fail(ErrorKind::kOther,
                     "FilterArgumentError: Missing parameter for attribute name");
  }
  const bool has_test = arguments.positional.size() > test_at;
  if (has_test && !arguments.positional[test_at].is_string()) {
    return self.FailType("TypeError: the name of a test is no string");
  }
  const Arguments rest = After(arguments, test_at + 1);
  Items out;
  for (const Value& item : *items) {
    const Value looked = kAttribute ? Look(self, item, arguments.positional[0], nullptr) : item;
    if (self.failed()) return Value();
    const auto holds = has_test ? self.ApplyTest(arguments.positional[test_at].text(), looked, rest)
                                : std::optional(looked.Truthy());
    if (!holds) return Value();
    if (*holds == kKeep) out.push_back(item);
  }
  return self.MakeList(std::move(out));
}

Value GroupBy(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  const Value* attribute = arguments.Find(0, "attribute");
  const Value* fallback = arguments.Find(1, "default");
  if (!items) return Value();
  if (attribute == nullptr) return self.FailType("TypeError: groupby without an attribute");
  Items raw;
  Items keys;
  for (const Value& item : *items) {
    raw.push_back(Look(self, item, *attribute, fallback));
    keys.push_back(SortKey(self, raw.back(), Flag(arguments, 2, "case_sensitive")));
    if (self.failed()) return Value();
  }
  const auto order = SortedOrder(self, keys, false);
  if (!order) return Value();
  Items groups;
  for (size_t i = 0; i < order->size();) {
    const size_t first = (*order)[i];
    Items group;
    for (; i < order->size() && Value::Equal(keys[(*order)[i]], keys[first]); ++i) {
      group.push_back((*items)[(*order)[i]]);
    }
    groups.push_back(self.MakeList({raw[first], self.MakeList(std::move(group))}, true));
  }
  return self.MakeList(std::move(groups));
}

Value Batch(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto items = self.Iterate(input);
  const Value* count = arguments.Find(0, "linecount");
  const Value* fill = arguments.Find(1, "fill_with");
  if (!items) return Value();
  if (count == nullptr || !count->is_integral() || count->integer() < 1 ||
      count->integer() > 1'000'000) {
    return self.FailType("TypeError: batch needs a count");
  }
  const auto size = static_cast<size_t>(count->integer());
  Items out;
  for (size_t i = 0; i < items->size(); i += size) {
    Items row(items->begin() + static_cast<std::ptrdiff_t>(i),
              items->begin() + static_cast<std::ptrdiff_t>(std::min(i + size, items->size())));
    if (fill != nullptr && !fill->is_none()) row.resize(size, *fill);
    out.push_back(self.MakeList(std::move(row)));
  }
  return self.MakeList(std::move(out));
}

}  // namespace

Filter FindSequenceFilter(std::string_view name) {
  static const auto& filters =
      *new std::map<std::string_view, Filter>{{"batch", Batch},
                                              {"dictsort", DictSort},
                                              {"first", First},
                                              {"groupby", GroupBy},
                                              {"items", ItemsFilter},
                                              {"join", Join},
                                              {"last", Last},
                                              {"list", ToList},
                                              {"map", Map},
                                              {"max", Extreme<true>},
                                              {"min", Extreme<false>},
                                              {"reject", Select<false, false>},
                                              {"rejectattr", Select<false, true>},
                                              {"reverse", Reverse},
                                              {"select", Select<true, false>},
                                              {"selectattr", Select<true, true>},
                                              {"sort", Sort},
                                              {"sum", Sum},
                                              {"unique", Unique}};
  const auto it = filters.find(name);
  return it == filters.end() ? nullptr : it->second;
}

}  // namespace tandem::chat_template
