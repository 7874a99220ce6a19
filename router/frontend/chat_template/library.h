#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "router/frontend/chat_template/interpreter.h"

// What templates can call: filters, tests, methods, functions. Each finds by name.
namespace tandem::chat_template {

using Filter = Value (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Test = std::optional<bool> (*)(Interpreter& interpreter, const Value& input,
                                     const Arguments& arguments);

// Null when there is none.
Filter FindFilter(std::string_view name);
Filter FindTextFilter(std::string_view name);
Filter FindSequenceFilter(std::string_view name);
Test FindTest(std::string_view name);

// A method bound to `self`; nothing when the type has none of that name.
std::optional<Value> FindStringMethod(const Value& self, std::string_view name);
std::optional<Value> FindDictMethod(const Value& self, std::string_view name);
std::optional<Value> FindListMethod(const Value& self, std::string_view name);
// Whether Python's type has a method that changes the value: the sandbox hides it.
bool IsMutatingMethod(const Value& self, std::string_view name);

// range, dict, namespace, raise_exception, strftime_now ...
void AddGlobals(Scope* scope);

}  // namespace tandem::chat_template
