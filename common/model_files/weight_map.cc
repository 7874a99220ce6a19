#include "common/model_files/weight_map.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/tensor_type.h"

namespace tandem::model_files {
namespace {

struct RoleName {
  const char* gguf;
  const char* hugging_face;
};

RoleName NameOf(WeightRole role) {
  switch (role) {
    case WeightRole::kTokenEmbedding:
      return {"token_embd.weight", "model.embed_tokens.weight"};
    case WeightRole::kOutputNorm:
      return {"output_norm.weight", "model.norm.weight"};
    case WeightRole::kOutput:
      return {"output.weight", "lm_head.weight"};
    case WeightRole::kAttentionNorm:
      return {"attn_norm.weight", "input_layernorm.weight"};
    case WeightRole::kQ:
      return {"attn_q.weight", "self_attn.q_proj.weight"};
    case WeightRole::kK:
      return {"attn_k.weight", "self_attn.k_proj.weight"};
    case WeightRole::kV:
      return {"attn_v.weight", "self_attn.v_proj.weight"};
    case WeightRole::kQBias:
      return {"attn_q.bias", "self_attn.q_proj.bias"};
    case WeightRole::kKBias:
      return {"attn_k.bias", "self_attn.k_proj.bias"};
    case WeightRole::kVBias:
      return {"attn_v.bias", "self_attn.v_proj.bias"};
    case WeightRole::kQNorm:
      return {"attn_q_norm.weight", "self_attn.q_norm.weight"};
    case WeightRole::kKNorm:
      return {"attn_k_norm.weight", "self_attn.k_norm.weight"};
    case WeightRole::kAttentionOutput:
      return {"attn_output.weight", "self_attn.o_proj.weight"};
    case WeightRole::kMlpNorm:
      return {"ffn_norm.weight", "post_attention_layernorm.weight"};
    case WeightRole::kGate:
      return {"ffn_gate.weight", "mlp.gate_proj.weight"};
    case WeightRole::kUp:
      return {"ffn_up.weight", "mlp.up_proj.weight"};
    case WeightRole::kDown:
      return {"ffn_down.weight", "mlp.down_proj.weight"};
  }
  return {"", ""};
}

constexpr RoleName kFusedQkv = {"attn_qkv.weight", "self_attn.qkv_proj.weight"};
constexpr RoleName kFusedGateUp = {"ffn_up.weight", "mlp.gate_up_proj.weight"};

std::string LayerTensorName(NamingScheme scheme, RoleName name, int32_t layer) {
  return scheme == NamingScheme::kGguf
             ? absl::StrCat("blk.", layer, ".", name.gguf)
             : absl::StrCat("model.layers.", layer, ".", name.hugging_face);
}

// Tensors that carry no weights of their own.
bool MayBeIgnored(const std::string& name, bool tied) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || name == "rope_freqs.weight" ||
         (tied && (name == "lm_head.weight" || name == "output.weight"));
}

class Builder {
 public:
  Builder(const WeightMapRequest& request, const ModelShape& shape, const TensorTable& tensors)
      : request_(request), shape_(shape), tensors_(tensors), map_(shape.num_layers) {}

  absl::StatusOr<WeightMap> Run() {
    for (const WeightRole role : RolesOf(shape_)) {
      if (!IsPerLayer(role)) {
        TANDEM_RETURN_IF_ERROR(AddRole(role, 0));
        continue;
      }
      for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
        TANDEM_RETURN_IF_ERROR(AddRole(role, layer));
      }
    }
    for (const auto& [name, tensor] : tensors_) {
      if (!used_.contains(name) && !MayBeIgnored(name, shape_.tied_embeddings)) {
        return absl::UnimplementedError(absl::StrCat(request_.file, ": tensor ", name.substr(0, 80),
                                                     " is none that this model type has"));
      }
    }
    return std::move(map_);
  }

 private:
  // Finds the tensor and checks that it is [rows, cols] ([cols] for one row).
  absl::StatusOr<WeightView> Take(const std::string& name, MatrixSize size) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(request_.file, ": tensor ", name, " is missing"));
    }
    const StoredTensor& tensor = found->second;
    const std::vector<int64_t> matrix = {size.rows, size.cols};
    const std::vector<int64_t> vector = {size.cols};
    if (tensor.dims != matrix && (size.rows != 1 || tensor.dims != vector)) {
      return absl::InvalidArgumentError(
          absl::StrCat(request_.file, ": tensor ", name, " has shape ", DimsText(tensor.dims),
                       "; wanted ", DimsText(size.rows == 1 ? vector : matrix)));
    }
    used_.insert(name);
    WeightView view;
    view.type = tensor.type;
    view.rows = size.rows;
    view.cols = size.cols;
    view.row_bytes = static_cast<int64_t>(tensor.bytes) / size.rows;
    view.data = tensor.data;
    return view;
  }

  absl::Status AddRole(WeightRole role, int32_t layer) {
    if (shape_.family == ModelFamily::kPhi3 && IsPerLayer(role)) {
      if (role == WeightRole::kQ || role == WeightRole::kK || role == WeightRole::kV) {
        const int64_t rows = shape_.q_size() + 2 * shape_.kv_size();
        const int64_t first = role == WeightRole::kQ   ? 0
                              : role == WeightRole::kK ? shape_.q_size()
                                                       : shape_.q_size() + shape_.kv_size();
        return AddSlice(role, layer, kFusedQkv, {rows, first});
      }
      if (role == WeightRole::kGate || role == WeightRole::kUp) {
        const int64_t rows = 2 * int64_t{shape_.intermediate_size};
        return AddSlice(role, layer, kFusedGateUp,
                        {rows, role == WeightRole::kGate ? 0 : rows / 2});
      }
    }
    const bool tied = role == WeightRole::kOutput && shape_.tied_embeddings;
    TANDEM_ASSIGN_OR_RETURN(
        WeightView view,
        Take(TensorName(request_.scheme, tied ? WeightRole::kTokenEmbedding : role, layer),
             SizeOfRole(role, shape_)));
    if (request_.permuted_qk && (role == WeightRole::kQ || role == WeightRole::kQBias)) {
      view.permuted_heads = shape_.num_q_heads;
    }
    if (request_.permuted_qk && (role == WeightRole::kK || role == WeightRole::kKBias)) {
      view.permuted_heads = shape_.num_kv_heads;
    }
    map_.Set(role, layer, view);
    return absl::OkStatus();
  }

  struct Slice {
    int64_t total_rows = 0;
    int64_t first_row = 0;
  };
  absl::Status AddSlice(WeightRole role, int32_t layer, RoleName fused, Slice slice) {
    const MatrixSize size = SizeOfRole(role, shape_);
    TANDEM_ASSIGN_OR_RETURN(WeightView view, Take(LayerTensorName(request_.scheme, fused, layer),
                                                  {slice.total_rows, size.cols}));
    view.rows = size.rows;
    view.data += slice.first_row * view.row_bytes;
    map_.Set(role, layer, view);
    return absl::OkStatus();
  }

  const WeightMapRequest& request_;
  const ModelShape& shape_;
  const TensorTable& tensors_;
  WeightMap map_;
  absl::flat_hash_set<std::string> used_;
};

}  // namespace

void WeightMap::Set(WeightRole role, int32_t layer, const WeightView& view) {
  Roles& roles = IsPerLayer(role) ? layers_[static_cast<size_t>(layer)] : model_;
  roles[static_cast<size_t>(role)] = view;
}

std::optional<WeightView> WeightMap::Find(WeightRole role, int32_t layer) const {
  if (!IsPerLayer(role)) {
    return model_[static_cast<size_t>(role)];
  }
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) {
    return std::nullopt;
  }
  return layers_[static_cast<size_t>(layer)][static_cast<size_t>(role)];
}

MatrixSize SizeOfRole(WeightRole role, const ModelShape& shape) {
  switch (role) {
    case WeightRole::kTokenEmbedding:
    case WeightRole::kOutput:
      return {shape.vocab_size, shape.hidden_size};
    case WeightRole::kOutputNorm:
    case WeightRole::kAttentionNorm:
    case WeightRole::kMlpNorm:
      return {1, shape.hidden_size};
    case WeightRole::kQ:
      return {shape.q_size(), shape.hidden_size};
    case WeightRole::kK:
    case WeightRole::kV:
      return {shape.kv_size(), shape.hidden_size};
    case WeightRole::kQBias:
      return {1, shape.q_size()};
    case WeightRole::kKBias:
    case WeightRole::kVBias:
      return {1, shape.kv_size()};
    case WeightRole::kQNorm:
    case WeightRole::kKNorm:
      return {1, shape.head_dim};
    case WeightRole::kAttentionOutput:
      return {shape.hidden_size, shape.q_size()};
    case WeightRole::kGate:
    case WeightRole::kUp:
      return {shape.intermediate_size, shape.hidden_size};
    case WeightRole::kDown:
      return {shape.hidden_size, shape.intermediate_size};
  }
  return {};
}

std::vector<WeightRole> RolesOf(const ModelShape& shape) {
  std::vector<WeightRole> roles = {WeightRole::kTokenEmbedding,
                                   WeightRole::kOutputNorm,
                                   WeightRole::kOutput,
                                   WeightRole::kAttentionNorm,
                                   WeightRole::kQ,
                                   WeightRole::kK,
                                   WeightRole::kV,
                                   WeightRole::kMlpNorm,
                                   WeightRole::kAttentionOutput,
                                   WeightRole::kGate,
                                   WeightRole::kUp,
                                   WeightRole::kDown};
  if (shape.qkv_bias) {
    roles.insert(roles.end(), {WeightRole::kQBias, WeightRole::kKBias, WeightRole::kVBias});
  }
  if (shape.qk_norm) {
    roles.insert(roles.end(), {WeightRole::kQNorm, WeightRole::kKNorm});
  }
  return roles;
}

std::string TensorName(NamingScheme scheme, WeightRole role, int32_t layer) {
  const RoleName name = NameOf(role);
  if (IsPerLayer(role)) {
    return LayerTensorName(scheme, name, layer);
  }
  return scheme == NamingScheme::kGguf ? name.gguf : name.hugging_face;
}

absl::StatusOr<WeightMap> BuildWeightMap(const WeightMapRequest& request, const ModelShape& shape,
                                         const TensorTable& tensors) {
  return Builder(request, shape, tensors).Run();
}

}  // namespace tandem::model_files
