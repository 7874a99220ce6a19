#pragma once

#include <cstddef>
#include <cstdint>

// The part of TVM FFI's stable C interface (version 0.1) that talks to XGrammar's library. Declared
// here, so that a build needs neither its headers nor the libraries; both are looked for at run
// time, and their version is checked.
namespace tandem::structured_output::abi {

enum TypeIndex : int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kFloat = 3,
  kTensorPtr = 7,
  kBytesPtr = 9,
  kFirstObject = 64,
  kArray = 71,
};

using ObjectHandle = void*;

struct Any {
  int32_t type_index = kNone;
  uint32_t padding = 0;
  union {
    int64_t as_int;
    double as_float;
    void* as_pointer;
    uint64_t bits = 0;
  };
};

struct ByteArray {
  const char* data;
  size_t size;
};

// Follows an object's header in an error object.
struct ErrorCell {
  ByteArray kind;
  ByteArray message;
  ByteArray backtrace;
};
inline constexpr size_t kObjectHeaderBytes = 24;

struct MethodInfo {
  ByteArray name;
  ByteArray doc;
  ByteArray metadata;
  int64_t flags;
  Any method;
};

struct TypeInfo {
  int32_t type_index;
  int32_t type_depth;
  ByteArray type_key;
  const TypeInfo** type_ancestors;
  uint64_t type_key_hash;
  int32_t num_fields;
  int32_t num_methods;
  const void* fields;
  const MethodInfo* methods;
  const void* metadata;
};

struct Version {
  uint32_t major;
  uint32_t minor;
  uint32_t patch;
};

// DLPack's view of memory.
struct Tensor {
  void* data;
  struct {
    int32_t type;
    int32_t id;
  } device;
  int32_t num_dimensions;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
inline constexpr int32_t kCpuDevice = 1;

static_assert(sizeof(Any) == 16 && sizeof(MethodInfo) == 72 && sizeof(TypeInfo) == 72);
static_assert(sizeof(Tensor) == 48);

}  // namespace tandem::structured_output::abi
