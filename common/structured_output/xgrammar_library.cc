#include "common/structured_output/xgrammar_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <filesystem>
#include <system_error>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::structured_output {
namespace {

constexpr char kFfiName[] = "libtvm_ffi.so";
constexpr char kXGrammarName[] = "libxgrammar_bindings.so";
constexpr char kTypePrefix[] = "xgrammar.tvm_ffi_binding.";
constexpr uint32_t kFfiMajor = 0;
constexpr uint32_t kFfiMinor = 1;
constexpr size_t kMaxErrorBytes = 2000;

std::string_view Text(const abi::ByteArray& bytes) { return {bytes.data, bytes.size}; }
abi::ByteArray BytesOf(std::string_view text) { return {text.data(), text.size()}; }

template <typename Function>
bool Find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

absl::StatusOr<void*> OpenLibrary(const std::filesystem::path& path) {
  // The runtime puts a handler of its own on this signal; the program's stays.
  struct sigaction before = {};
  sigaction(SIGSEGV, nullptr, &before);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  sigaction(SIGSEGV, &before, nullptr);
  if (handle == nullptr) {
    return absl::UnimplementedError(
        base::StrCat("structured output is not available here: ", dlerror()));
  }
  return handle;
}

}  // namespace

const XGrammarLibrary* XGrammarLibrary::opened_ = nullptr;

void Value::Release() {
  if (is_object()) {
    XGrammarLibrary::opened_->api_.decrease_references(any_.as_pointer);
  }
  any_ = abi::Any();
}

abi::Any IntArgument(int64_t value) {
  abi::Any any;
  any.type_index = abi::kInt;
  any.as_int = value;
  return any;
}

abi::Any BoolArgument(bool value) {
  abi::Any any;
  any.type_index = abi::kBool;
  any.as_int = value ? 1 : 0;
  return any;
}

absl::StatusOr<const XGrammarLibrary*> XGrammarLibrary::Get() {
  // Never destroyed: values of other static objects may outlive it.
  static const absl::StatusOr<const XGrammarLibrary*> library =
      []() -> absl::StatusOr<const XGrammarLibrary*> {
    auto* opened = new XGrammarLibrary();
    opened_ = opened;
    TANDEM_RETURN_IF_ERROR(opened->Open());
    return opened;
  }();
  return library;
}

absl::Status XGrammarLibrary::Open() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path().parent_path() / "lib";
  // XGrammar's needs the other one, which is then found by its name.
  TANDEM_ASSIGN_OR_RETURN(void* const ffi, OpenLibrary(folder / kFfiName));
  TANDEM_RETURN_IF_ERROR(FindFunctions(ffi));
  abi::Version version = {};
  api_.get_version(&version);
  if (version.major != kFfiMajor || version.minor != kFfiMinor) {
    return absl::UnimplementedError(base::StrCat(
        "structured output is not available here: ", kFfiName, " has version ", version.major, ".",
        version.minor, "; supported: ", kFfiMajor, ".", kFfiMinor));
  }
  TANDEM_RETURN_IF_ERROR(OpenLibrary(folder / kXGrammarName).status());
  return FindMethods();
}

absl::Status XGrammarLibrary::FindFunctions(void* handle) {
  const bool found = Find(handle, "TVMFFIGetVersion", &api_.get_version) &&
                     Find(handle, "TVMFFIObjectDecRef", &api_.decrease_references) &&
                     Find(handle, "TVMFFIFunctionCall", &api_.call) &&
                     Find(handle, "TVMFFIErrorMoveFromRaised", &api_.take_error) &&
                     Find(handle, "TVMFFIFunctionGetGlobal", &api_.find_global) &&
                     Find(handle, "TVMFFITypeKeyToIndex", &api_.find_type) &&
                     Find(handle, "TVMFFIGetTypeInfo", &api_.type_info) &&
                     Find(handle, "TVMFFIBytesFromByteArray", &api_.make_bytes);
  return found ? absl::OkStatus()
               : absl::UnimplementedError(base::StrCat(
                     "structured output is not available here: ", kFfiName, " lacks a function"));
}

absl::Status XGrammarLibrary::FindMethods() {
  const abi::ByteArray array = BytesOf("ffi.Array");
  if (api_.find_global(&array, &methods_.make_array) != 0 || methods_.make_array == nullptr) {
    return absl::UnimplementedError("structured output is not available here: no ffi.Array");
  }
  struct Wanted {
    std::string_view type;
    std::string_view name;
    abi::ObjectHandle* method;
  };
  const Wanted wanted[] = {
      {"TokenizerInfo", "__ffi_init__", &methods_.make_tokenizer_info},
      {"GrammarCompiler", "__ffi_init__", &methods_.make_compiler},
      {"GrammarCompiler", "compile_grammar_from_strings", &methods_.compile_ebnf},
      {"CompiledGrammar", "memory_size_bytes", &methods_.grammar_bytes},
      {"GrammarMatcher", "__ffi_init__", &methods_.make_matcher},
      {"GrammarMatcher", "accept_token", &methods_.accept_token},
      {"GrammarMatcher", "accept_string", &methods_.accept_string},
      {"GrammarMatcher", "fill_next_token_bitmask", &methods_.fill_bitmask},
      {"GrammarMatcher", "is_completed", &methods_.is_completed},
      {"GrammarMatcher", "reset", &methods_.reset},
  };
  for (const Wanted& one : wanted) {
    TANDEM_RETURN_IF_ERROR(FindMethod(one.type, one.name, one.method));
  }
  return absl::OkStatus();
}

absl::Status XGrammarLibrary::FindMethod(std::string_view type, std::string_view name,
                                         abi::ObjectHandle* method) const {
  const std::string key = base::StrCat(kTypePrefix, type);
  const abi::ByteArray key_bytes = BytesOf(key);
  int32_t index = 0;
  if (api_.find_type(&key_bytes, &index) == 0) {
    const abi::TypeInfo* info = api_.type_info(index);
    for (int32_t i = 0; info != nullptr && i < info->num_methods; ++i) {
      if (Text(info->methods[i].name) == name) {
        *method = info->methods[i].method.as_pointer;
        return absl::OkStatus();
      }
    }
  }
  return absl::UnimplementedError(base::StrCat(
      "structured output is not available here: ", kXGrammarName, " has no ", key, ".", name));
}

absl::StatusOr<Value> XGrammarLibrary::Call(abi::ObjectHandle function,
                                            std::span<const abi::Any> arguments) const {
  abi::Any result;
  if (api_.call(function, arguments.data(), static_cast<int32_t>(arguments.size()), &result) == 0) {
    return Value(result);
  }
  abi::Any error;
  api_.take_error(&error.as_pointer);
  if (error.as_pointer == nullptr) {
    return absl::InternalError("XGrammar failed without an error");
  }
  error.type_index = abi::kFirstObject;
  const auto* cell = reinterpret_cast<const abi::ErrorCell*>(
      static_cast<const char*>(error.as_pointer) + abi::kObjectHeaderBytes);
  const std::string message(Text(cell->message).substr(0, kMaxErrorBytes));
  const Value released(error);
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<Value> XGrammarLibrary::Bytes(std::string_view bytes) const {
  const abi::ByteArray array = BytesOf(bytes);
  abi::Any any;
  if (api_.make_bytes(&array, &any) != 0) {
    return absl::InternalError("XGrammar's runtime cannot hold bytes");
  }
  return Value(any);
}

}  // namespace tandem::structured_output
