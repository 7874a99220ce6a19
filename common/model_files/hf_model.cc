#include "common/model_files/hf_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/hf_config.h"
#include "common/model_files/json_fields.h"
#include "common/model_files/safetensors_reader.h"
#include "common/model_files/utf8.h"
#include "nlohmann/json.hpp"

namespace tandem::model_files {
namespace {

using nlohmann::json;
using tokenizer::TokenizerSpec;

constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxTokenizerBytes = uint64_t{512} << 20;
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::span<const std::byte> BytesOf(const shm::MappedFile& file) {
  return {file.data(), file.size()};
}

class FolderReader {
 public:
  FolderReader(const std::string& folder, const OpenOptions& options,
               std::vector<shm::MappedFile>* mappings)
      : folder_(folder), options_(options), mappings_(*mappings) {}

  absl::StatusOr<ModelParts> Run() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> config,
                            ReadText("config.json", kMaxConfigBytes));
    if (!config) {
      return absl::NotFoundError(absl::StrCat(Path("config.json"), ": not found"));
    }
    TANDEM_RETURN_IF_ERROR(ReadHfConfig(*config, Path("config.json"), options_, &parts_));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> generation,
                            ReadText("generation_config.json", kMaxConfigBytes));
    if (generation) {
      TANDEM_RETURN_IF_ERROR(
          ReadGenerationConfig(*generation, Path("generation_config.json"), &parts_));
    }
    TANDEM_RETURN_IF_ERROR(ReadTokenizer());
    if (options_.dummy_weights) {
      AddDummyWeights(&parts_);
      return std::move(parts_);
    }
    TANDEM_ASSIGN_OR_RETURN(const TensorTable tensors, ReadTensors());
    WeightMapRequest request;
    request.scheme = NamingScheme::kHuggingFace;
    request.file = folder_;
    TANDEM_ASSIGN_OR_RETURN(parts_.weights, BuildWeightMap(request, parts_.shape, tensors));
    for (const auto& [name, tensor] : tensors) {
      parts_.weight_bytes += tensor.bytes;
    }
    return std::move(parts_);
  }

 private:
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // The contents of a file of the folder; nullopt when there is none.
  absl::StatusOr<std::optional<std::string>> ReadText(const std::string& name, uint64_t max_bytes) {
    absl::StatusOr<shm::MappedFile> file = shm::MappedFile::Open(Path(name));
    if (absl::IsNotFound(file.status())) {
      return std::optional<std::string>();
    }
    TANDEM_RETURN_IF_ERROR(file.status());
    if (file->size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(Path(name), ": has ", file->size(), " bytes; allowed: ", max_bytes));
    }
    return std::optional<std::string>(
        std::string(reinterpret_cast<const char*>(file->data()), file->size()));
  }

  absl::Status ReadTokenizer() {
    TokenizerSpec& spec = parts_.tokenizer;
    const struct {
      const char* file;
      TokenizerSpec::Kind kind;
    } candidates[] = {{"tokenizer.json", TokenizerSpec::Kind::kTokenizerJson},
                      {"tokenizer.model", TokenizerSpec::Kind::kSentencePiece},
                      {"tekken.json", TokenizerSpec::Kind::kTekken}};
    for (const auto& candidate : candidates) {
      TANDEM_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                              ReadText(candidate.file, kMaxTokenizerBytes));
      if (bytes) {
        spec.kind = candidate.kind;
        spec.file = *std::move(bytes);
        break;
      }
    }
    if (spec.kind == TokenizerSpec::Kind::kSentencePiece && LooksLikeTiktoken(spec.file)) {
      spec.kind = TokenizerSpec::Kind::kTiktoken;
    }
    TANDEM_ASSIGN_OR_RETURN(std::optional<std::string> config,
                            ReadText("tokenizer_config.json", kMaxConfigBytes));
    spec.tokenizer_config_json = std::move(config).value_or("");
    if (!spec.tokenizer_config_json.empty()) {
      TANDEM_RETURN_IF_ERROR(ReadTokenizerConfig());
    }
    return ReadChatTemplateFiles();
  }

  // Llama 3's tokenizer.model is lines of base64 and a rank; sentencepiece's is a protobuf, whose
  // first byte is a newline (field 1, length-delimited).
  static bool LooksLikeTiktoken(const std::string& bytes) {
    const std::string_view line = std::string_view(bytes).substr(0, bytes.find('\n'));
    const size_t space = line.find(' ');
    return space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
           std::all_of(line.begin() + static_cast<ptrdiff_t>(space) + 1, line.end(),
                       [](char c) { return (c >= '0' && c <= '9') || c == '\r'; });
  }

  absl::Status ReadTokenizerConfig() {
    TokenizerSpec& spec = parts_.tokenizer;
    const std::string file = Path("tokenizer_config.json");
    TANDEM_ASSIGN_OR_RETURN(const json config, ParseJsonObject(spec.tokenizer_config_json, file));
    const JsonFields fields(config, file);
    TANDEM_ASSIGN_OR_RETURN(spec.add_bos, fields.Bool("add_bos_token"));
    TANDEM_ASSIGN_OR_RETURN(spec.add_eos, fields.Bool("add_eos_token"));
    return ReadChatTemplateField(fields);
  }

  // A string, or a list of named ones of which "default" is the one for chats.
  absl::Status ReadChatTemplateField(const JsonFields& fields) {
    const json* value = fields.Any("chat_template");
    if (value == nullptr) {
      return absl::OkStatus();
    }
    if (value->is_string()) {
      parts_.tokenizer.chat_template = value->get<std::string>();
      return absl::OkStatus();
    }
    if (!value->is_array()) {
      return fields.Invalid("chat_template", "is neither a string nor a list");
    }
    for (const json& entry : *value) {
      if (!entry.is_object()) {
        return fields.Invalid("chat_template", "holds something else than named templates");
      }
      const JsonFields named(entry, fields.file(), "chat_template");
      TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> name, named.String("name"));
      TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> text, named.String("template"));
      if (name && text && *name == "default") {
        parts_.tokenizer.chat_template = *text;
      }
    }
    return absl::OkStatus();
  }

  // A template in a file of its own comes before the field.
  absl::Status ReadChatTemplateFiles() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> jinja,
                            ReadText("chat_template.jinja", kMaxConfigBytes));
    if (jinja) {
      parts_.tokenizer.chat_template = *jinja;
      return IsUtf8(*jinja) ? absl::OkStatus()
                            : absl::InvalidArgumentError(absl::StrCat(Path("chat_template.jinja"),
                                                                      ": is not valid UTF-8"));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                            ReadText("chat_template.json", kMaxConfigBytes));
    if (!text) {
      return absl::OkStatus();
    }
    const std::string file = Path("chat_template.json");
    TANDEM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(*text, file));
    return ReadChatTemplateField(JsonFields(object, file));
  }

  // Tensor names of each safetensors file by the index; without one, all of every file.
  using Shards = std::map<std::string, std::vector<std::string>>;

  absl::StatusOr<Shards> ListShards() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> index,
                            ReadText(kIndexFile, kMaxConfigBytes));
    return index ? ReadIndex(*index) : FindShards();
  }

  absl::StatusOr<Shards> ReadIndex(const std::string& text) {
    const std::string file = Path(kIndexFile);
    TANDEM_ASSIGN_OR_RETURN(const json index, ParseJsonObject(text, file));
    const JsonFields fields(index, file);
    TANDEM_ASSIGN_OR_RETURN(const json* map, fields.Object("weight_map"));
    if (map == nullptr || map->empty()) {
      return fields.Invalid("weight_map", "is missing or empty");
    }
    Shards shards;
    for (const auto& [tensor, shard] : map->items()) {
      const std::string name = shard.is_string() ? shard.get<std::string>() : "";
      // A name from a file must not lead out of the folder.
      if (!absl::EndsWith(name, ".safetensors") || absl::StrContains(name, "/") ||
          absl::StrContains(name, std::string(1, '\0'))) {
        return fields.Invalid("weight_map", absl::StrCat("gives no plain *.safetensors name for ",
                                                         tensor.substr(0, 80)));
      }
      shards[name].push_back(tensor);
    }
    return shards;
  }

  absl::StatusOr<Shards> FindShards() {
    Shards shards;
    std::error_code error;
    std::filesystem::directory_iterator entries(folder_, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      // consolidated.*: the same weights once more, in the vendor's own naming.
      if (absl::EndsWith(name, ".safetensors") && !absl::StartsWith(name, "consolidated")) {
        shards[name];
      }
    }
    if (error || shards.empty()) {
      return absl::NotFoundError(absl::StrCat(folder_, ": no *.safetensors file in it"));
    }
    return shards;
  }

  absl::StatusOr<TensorTable> ReadTensors() {
    TANDEM_ASSIGN_OR_RETURN(const Shards shards, ListShards());
    TensorTable tensors;
    for (const auto& [name, listed] : shards) {
      TANDEM_ASSIGN_OR_RETURN(shm::MappedFile mapping, shm::MappedFile::Open(Path(name)));
      TANDEM_ASSIGN_OR_RETURN(TensorTable part, ParseSafetensors(BytesOf(mapping), Path(name)));
      mappings_.push_back(std::move(mapping));
      if (!listed.empty()) {
        TANDEM_RETURN_IF_ERROR(KeepListed(listed, Path(name), &part));
      }
      for (auto& [tensor_name, tensor] : part) {
        if (!tensors.emplace(tensor_name, std::move(tensor)).second) {
          return absl::InvalidArgumentError(absl::StrCat(
              Path(name), ": tensor ", tensor_name.substr(0, 80), " is in another file too"));
        }
      }
    }
    return tensors;
  }

  absl::Status KeepListed(const std::vector<std::string>& listed, const std::string& file,
                          TensorTable* part) {
    TensorTable kept;
    for (const std::string& name : listed) {
      const auto found = part->find(name);
      if (found == part->end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            file, ": tensor ", name.substr(0, 80), " is missing; ", kIndexFile, " places it here"));
      }
      kept.insert(*found);
    }
    *part = std::move(kept);
    return absl::OkStatus();
  }

  const std::string folder_;
  const OpenOptions& options_;
  std::vector<shm::MappedFile>& mappings_;
  ModelParts parts_;
};

}  // namespace

absl::StatusOr<ModelParts> ReadHfModel(const std::string& folder, const OpenOptions& options,
                                       std::vector<shm::MappedFile>* mappings) {
  return FolderReader(folder, options, mappings).Run();
}

}  // namespace tandem::model_files
