#include "gpu_worker/ops/host/matmul.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <list>
#include <unordered_map>
#include <utility>

#include "common/attention_kernels/paged_decode.h"
#include "common/base/check.h"
#include "gpu_worker/ops/host/amx_matmul.h"
#include "gpu_worker/ops/host/avx2_matmul.h"

namespace tandem::gpu_worker::ops::host {
namespace {

using dnnl::memory;

// A model has five weight shapes and 60 row buckets up to 2048 rows.
constexpr size_t kMaxPrimitives = 512;

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
}

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::primitive_attr ExactAttributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attributes;
}

memory::desc ChosenWeights(DType dtype, int64_t n, int64_t k) {
  constexpr int64_t kRows = 64;  // all row counts choose alike; measured for 1 to 256
  const memory::desc in({kRows, k}, TypeOf(dtype), memory::format_tag::ab);
  const memory::desc any({k, n}, TypeOf(dtype), memory::format_tag::any);
  const memory::desc out({kRows, n}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::desc matmul(in, any, out);
  return dnnl::matmul::primitive_desc(matmul, ExactAttributes(), Engine()).weights_desc();
}

// Offsets of index `i` along dimension `dim` in a blocked format.
std::vector<int64_t> OffsetsAlong(const dnnl_memory_desc_t& desc, int dim) {
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  std::vector<int64_t> offsets(static_cast<size_t>(desc.dims[dim]));
  for (int64_t i = 0; i < desc.dims[dim]; ++i) {
    int64_t rest = i;
    int64_t stride = 1;
    int64_t offset = 0;
    for (int b = blocking.inner_nblks - 1; b >= 0; --b) {
      if (blocking.inner_idxs[b] == dim) {
        offset += rest % blocking.inner_blks[b] * stride;
        rest /= blocking.inner_blks[b];
      }
      stride *= blocking.inner_blks[b];
    }
    offsets[static_cast<size_t>(i)] = offset + rest * blocking.strides[dim];
  }
  return offsets;
}

// With the kernel's permission for this process.
bool MayUseAmx() {
  static const bool may = [] {
    const std::vector<attention::Isa> isas = attention::SupportedIsas();
    return std::find(isas.begin(), isas.end(), attention::Isa::kAmxBf16) != isas.end();
  }();
  return may;
}

PackedFormat AmxFormat(int64_t n, int64_t k) {
  constexpr int64_t kTileColumns = kAmxPanelColumns / 2;
  constexpr int64_t kTileElements = kTileColumns * kAmxStep;
  const int64_t panels = (n + kAmxPanelColumns - 1) / kAmxPanelColumns;
  PackedFormat format;
  format.order = PackedFormat::Order::kAmx;
  format.dtype = DType::kBFloat16;
  format.n = n;
  format.k = k;
  format.bytes = static_cast<size_t>(panels * kAmxPanelColumns * k) * sizeof(uint16_t);
  for (int64_t i = 0; i < k; ++i) {
    format.k_offset.push_back(i / kAmxStep * 2 * kTileElements +
                              i % kAmxStep / 2 * 2 * kTileColumns + i % 2);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t column = i % kAmxPanelColumns;
    format.n_offset.push_back(i / kAmxPanelColumns * kAmxPanelColumns * k +
                              column / kTileColumns * kTileElements + column % kTileColumns * 2);
  }
  return format;
}

// Where oneDNN multiplies no bfloat16.
bool NeedsAvx2() {
  static const bool needs = dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core &&
                            __builtin_cpu_supports("avx2") != 0 &&
                            __builtin_cpu_supports("fma") != 0;
  return needs;
}

PackedFormat Avx2Format(int64_t n, int64_t k) {
  constexpr int64_t kHalf = kAvx2PanelColumns / 2;
  const int64_t panels = (n + kAvx2PanelColumns - 1) / kAvx2PanelColumns;
  PackedFormat format;
  format.order = PackedFormat::Order::kAvx2;
  format.dtype = DType::kBFloat16;
  format.n = n;
  format.k = k;
  format.bytes = static_cast<size_t>(panels * kAvx2PanelColumns * k) * sizeof(uint16_t);
  for (int64_t i = 0; i < k; ++i) {
    format.k_offset.push_back(i * kAvx2PanelColumns);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t column = i % kAvx2PanelColumns;
    format.n_offset.push_back((i - column) * k + column % kHalf * 2 + column / kHalf);
  }
  return format;
}

void RunAvx2(const MatmulCall& call, std::vector<float>& scratch) {
  const int64_t k = call.format->k;
  const int64_t n = call.format->n;
  const int64_t panels = (n + kAvx2PanelColumns - 1) / kAvx2PanelColumns;
  const bool out_bf16 = call.out_dtype == DType::kBFloat16;
  const auto most = static_cast<size_t>(std::min(call.rows, kAvx2MostRows) * k);
  scratch.resize(std::max(scratch.size(), most));
  for (int64_t row = 0; row < call.rows; row += kAvx2MostRows) {
    Avx2Matmul product;
    product.weights = reinterpret_cast<const uint16_t*>(call.weights);
    product.bias = call.bias;
    product.in = reinterpret_cast<const uint16_t*>(call.in) + row * k;
    product.widened = scratch.data();
    product.out = call.out + row * n * (out_bf16 ? 2 : 4);
    product.rows = std::min(call.rows - row, kAvx2MostRows);
    product.n = n;
    product.k = k;
    product.out_bf16 = out_bf16;
    product.accumulate = call.accumulate;
    const int64_t elements = product.rows * k;
#pragma omp parallel
    {
      const int64_t thread = omp_get_thread_num();
      const int64_t threads = omp_get_num_threads();
      Avx2Widen(product, elements * thread / threads, elements * (thread + 1) / threads);
#pragma omp barrier
      Avx2Run(product, panels * thread / threads, panels * (thread + 1) / threads);
    }
  }
}

void RunAmx(const MatmulCall& call) {
  AmxMatmul product;
  product.weights = reinterpret_cast<const uint16_t*>(call.weights);
  product.bias = call.bias;
  product.in = reinterpret_cast<const uint16_t*>(call.in);
  product.out = call.out;
  product.rows = call.rows;
  product.n = call.format->n;
  product.k = call.format->k;
  product.out_bf16 = call.out_dtype == DType::kBFloat16;
  product.accumulate = call.accumulate;
  const int64_t parts = AmxParts(product);
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num();
    const int64_t threads = omp_get_num_threads();
    AmxRun(product, parts * thread / threads, parts * (thread + 1) / threads);
  }
}

struct Key {
  int64_t n;
  int64_t k;
  int64_t rows;
  DType dtype;
  DType out_dtype;
  bool accumulate;
  bool bias;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = static_cast<uint64_t>(key.n) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ static_cast<uint64_t>(key.k)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ static_cast<uint64_t>(key.rows)) * 0x9e3779b97f4a7c15u;
    hash ^= static_cast<uint64_t>(key.dtype) << 3 | static_cast<uint64_t>(key.out_dtype) << 8 |
            static_cast<uint64_t>(key.accumulate) << 1 | static_cast<uint64_t>(key.bias);
    return hash ^ (hash >> 29);
  }
};

struct Primitive {
  Key key;
  dnnl::matmul matmul;
  memory in;
  memory weights;
  memory bias;
  memory out;
  memory scratch;
  size_t scratch_bytes = 0;
  std::unordered_map<int, memory> arguments;
};

Primitive MakePrimitive(const Key& key) {
  const memory::desc in({key.rows, key.k}, TypeOf(key.dtype), memory::format_tag::ab);
  const memory::desc weights = ChosenWeights(key.dtype, key.n, key.k);
  const memory::desc out({key.rows, key.n}, TypeOf(key.out_dtype), memory::format_tag::ab);
  const memory::desc bias({1, key.n}, memory::data_type::f32, memory::format_tag::ab);
  dnnl::primitive_attr attributes = ExactAttributes();
  if (key.accumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0f);
    attributes.set_post_ops(post_ops);
  }
  const dnnl::matmul::desc desc =
      key.bias ? dnnl::matmul::desc(in, weights, bias, out) : dnnl::matmul::desc(in, weights, out);
  const dnnl::matmul::primitive_desc primitive(desc, attributes, Engine());
  Primitive made;
  made.key = key;
  made.matmul = dnnl::matmul(primitive);
  made.in = memory(in, Engine(), nullptr);
  made.weights = memory(weights, Engine(), nullptr);
  made.out = memory(out, Engine(), nullptr);
  made.scratch = memory(primitive.scratchpad_desc(), Engine(), nullptr);
  made.scratch_bytes = primitive.scratchpad_desc().get_size();
  made.arguments = {{DNNL_ARG_SRC, made.in},
                    {DNNL_ARG_WEIGHTS, made.weights},
                    {DNNL_ARG_DST, made.out},
                    {DNNL_ARG_SCRATCHPAD, made.scratch}};
  if (key.bias) {
    made.bias = memory(bias, Engine(), nullptr);
    made.arguments.emplace(DNNL_ARG_BIAS, made.bias);
  }
  return made;
}

}  // namespace

struct MatmulCache::Impl {
  dnnl::stream stream{Engine()};
  std::list<Primitive> newest_first;
  std::unordered_map<Key, std::list<Primitive>::iterator, KeyHash> by_key;
  std::vector<std::byte> scratch;
  std::vector<float> widened;  // rows of RunAvx2

  Primitive& Get(const Key& key) {
    if (auto found = by_key.find(key); found != by_key.end()) {
      newest_first.splice(newest_first.begin(), newest_first, found->second);
      return newest_first.front();
    }
    if (by_key.size() >= kMaxPrimitives) {
      by_key.erase(newest_first.back().key);
      newest_first.pop_back();
    }
    newest_first.push_front(MakePrimitive(key));
    by_key.emplace(key, newest_first.begin());
    if (newest_first.front().scratch_bytes + 64 > scratch.size()) {
      scratch.resize(newest_first.front().scratch_bytes + 64);
    }
    return newest_first.front();
  }
};

MatmulCache::MatmulCache() : impl_(std::make_unique<Impl>()) {}
MatmulCache::~MatmulCache() = default;

void MatmulCache::Run(const MatmulCall& call) {
  const PackedFormat& format = *call.format;
  switch (format.order) {
    case PackedFormat::Order::kAmx:
      RunAmx(call);
      return;
    case PackedFormat::Order::kAvx2:
      RunAvx2(call, impl_->widened);
      return;
    case PackedFormat::Order::kOneDnn:
      break;
  }
  const Key key{format.n,       format.k,        RowBucket(call.rows), format.dtype,
                call.out_dtype, call.accumulate, call.bias != nullptr};
  Primitive& primitive = impl_->Get(key);
  primitive.in.set_data_handle(const_cast<std::byte*>(call.in));
  primitive.weights.set_data_handle(const_cast<std::byte*>(call.weights));
  primitive.out.set_data_handle(call.out);
  if (call.bias != nullptr) {
    primitive.bias.set_data_handle(const_cast<float*>(call.bias));
  }
  const auto address = reinterpret_cast<uintptr_t>(impl_->scratch.data());
  primitive.scratch.set_data_handle(reinterpret_cast<void*>((address + 63) / 64 * 64));
  primitive.matmul.execute(impl_->stream, primitive.arguments);
}

PackedFormat ChoosePackedFormat(DType dtype, int64_t n, int64_t k) {
  if (dtype == DType::kBFloat16 && k % kAmxStep == 0 && MayUseAmx()) {
    return AmxFormat(n, k);
  }
  if (dtype == DType::kBFloat16 && NeedsAvx2()) {
    return Avx2Format(n, k);
  }
  return OneDnnPackedFormat(dtype, n, k);
}

PackedFormat OneDnnPackedFormat(DType dtype, int64_t n, int64_t k) {
  const memory::desc weights = ChosenWeights(dtype, n, k);
  TANDEM_CHECK(weights.data.format_kind == dnnl_blocked);
  PackedFormat format;
  format.dtype = dtype;
  format.n = n;
  format.k = k;
  format.bytes = weights.get_size();
  format.k_offset = OffsetsAlong(weights.data, 0);
  format.n_offset = OffsetsAlong(weights.data, 1);
  return format;
}

int64_t RowBucket(int64_t rows) {
  if (rows <= 16) {
    return rows;
  }
  int64_t step = 4;
  while (step * 16 < rows) {
    step *= 2;
  }
  return (rows + step - 1) / step * step;
}

bool RunsBFloat16() {
  return NeedsAvx2() || dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core;
}

bool HasFastBFloat16() {
  return NeedsAvx2() || dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_bf16;
}

}  // namespace tandem::gpu_worker::ops::host
