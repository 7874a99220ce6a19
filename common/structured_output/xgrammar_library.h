#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/structured_output/xgrammar_abi.h"

namespace tandem::structured_output {

// An owned value of the library: a number or a reference to one of its objects.
class Value {
 public:
  Value() = default;
  explicit Value(abi::Any any) : any_(any) {}
  ~Value() { Release(); }
  Value(Value&& other) noexcept : any_(std::exchange(other.any_, abi::Any())) {}
  Value& operator=(Value&& other) noexcept {
    if (this != &other) {
      Release();
      any_ = std::exchange(other.any_, abi::Any());
    }
    return *this;
  }

  // As an argument; lives as long as this value.
  const abi::Any& view() const { return any_; }
  int64_t as_int() const { return any_.as_int; }
  bool as_bool() const { return any_.as_int != 0; }
  bool is_object() const { return any_.type_index >= abi::kFirstObject; }

 private:
  void Release();
  abi::Any any_;
};

abi::Any IntArgument(int64_t value);
abi::Any BoolArgument(bool value);

// The methods that we call, found by reflection in libxgrammar_bindings.so.
struct XGrammarMethods {
  abi::ObjectHandle make_array = nullptr;
  abi::ObjectHandle make_tokenizer_info = nullptr;
  abi::ObjectHandle make_compiler = nullptr;
  abi::ObjectHandle compile_ebnf = nullptr;
  abi::ObjectHandle grammar_bytes = nullptr;
  abi::ObjectHandle make_matcher = nullptr;
  abi::ObjectHandle accept_token = nullptr;
  abi::ObjectHandle accept_string = nullptr;
  abi::ObjectHandle fill_bitmask = nullptr;
  abi::ObjectHandle is_completed = nullptr;
  abi::ObjectHandle reset = nullptr;
};

// XGrammar as its PyPI wheel holds it, without Python. Opened once, never closed; thread-safe.
class XGrammarLibrary {
 public:
  // The libraries stand in lib/ beside the folder of the running program. Unimplemented, and why,
  // where they cannot be used.
  static absl::StatusOr<const XGrammarLibrary*> Get();

  const XGrammarMethods& methods() const { return methods_; }
  // InvalidArgument with the library's message when the call fails.
  absl::StatusOr<Value> Call(abi::ObjectHandle function, std::span<const abi::Any> arguments) const;
  absl::StatusOr<Value> Bytes(std::string_view bytes) const;

 private:
  friend class Value;
  struct Api {
    void (*get_version)(abi::Version*);
    int (*decrease_references)(abi::ObjectHandle);
    int (*call)(abi::ObjectHandle, const abi::Any*, int32_t, abi::Any*);
    void (*take_error)(abi::ObjectHandle*);
    int (*find_global)(const abi::ByteArray*, abi::ObjectHandle*);
    int (*find_type)(const abi::ByteArray*, int32_t*);
    const abi::TypeInfo* (*type_info)(int32_t);
    int (*make_bytes)(const abi::ByteArray*, abi::Any*);
  };

  XGrammarLibrary() = default;
  absl::Status Open();
  absl::Status FindFunctions(void* handle);
  absl::Status FindMethods();
  absl::Status FindMethod(std::string_view type, std::string_view name,
                          abi::ObjectHandle* method) const;
  static const XGrammarLibrary* opened_;

  Api api_ = {};
  XGrammarMethods methods_;
};

}  // namespace tandem::structured_output
