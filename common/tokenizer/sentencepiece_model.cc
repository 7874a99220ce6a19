#include "common/tokenizer/sentencepiece_model.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace tandem::tokenizer {
namespace {

constexpr char kModuleName[] = "libtandem_sentencepiece.so";

// The module's own symbols come before the program's. The sanitizers' runtimes refuse that flag;
// their builds use the module only in programs without libprotobuf.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

struct OpenedModule {
  const SentencePieceApi* api = nullptr;
  std::string error;
};

// The module stands in lib/ beside the folder of the running program. Never closed again.
OpenedModule OpenModule() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = program.parent_path().parent_path() / "lib" / kModuleName;
  void* handle = dlopen(path.c_str(), kOpenFlags);
  if (handle == nullptr) {
    return {nullptr, std::string("the sentencepiece module cannot be opened: ") + dlerror()};
  }
  using GetApi = const SentencePieceApi* (*)();
  const auto get_api = reinterpret_cast<GetApi>(dlsym(handle, kSentencePieceApiSymbol));
  if (get_api == nullptr) {
    return {nullptr, path.string() + " has no symbol " + kSentencePieceApiSymbol};
  }
  return {get_api(), ""};
}

}  // namespace

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view file,
                                                             std::string* error) {
  static const OpenedModule module = OpenModule();
  if (module.api == nullptr) {
    *error = module.error;
    return nullptr;
  }
  void* processor = module.api->load(file, error);
  if (processor == nullptr) {
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(*module.api, processor));
}

SentencePieceModel::~SentencePieceModel() { api_.destroy(processor_); }

}  // namespace tandem::tokenizer
