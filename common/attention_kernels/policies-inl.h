#pragma once

// How the elements of a KV dtype are loaded and multiplied, for paged_decode-inl.h; included once
// by each file of isa/ after it has defined `Ops`.

#include <stdint.h>
#include <string.h>

namespace tandem::attention {
namespace {

// What __builtin_prefetch takes.
constexpr int kFirstLevel = 3;
constexpr int kSecondLevel = 2;
constexpr int kNoPrefetch = 0;

constexpr int kPairChunkColumns = 64;  // V columns that stand together in the pair layouts

// A policy says what one step of a dot product loads and how it is multiplied. A step covers
// `kPerStep` dimensions of K (tokens of V); weights (queries, probabilities) are `kPerStep`
// consecutive elements. `kScales`: each token has a scale beside its tile. `kFactor`: what every
// product has to be multiplied with besides. `kInteger`: weights are integers with a scale
// for each query head, and sums are integers too. `kMayPrefetch`: compiled with and without
// prefetches. `kPrefetchLocality`: where to. `kRegisters`: of a step's data, and of its factor.
struct FloatSums {
  using Acc = Ops::Vec;
  static constexpr bool kInteger = false;
  static constexpr bool kMayPrefetch = false;
  static constexpr int kPrefetchLocality = kSecondLevel;
  static constexpr int kRegisters = 1;
  static Acc Zero() { return Ops::Set1(0.0f); }
  static Ops::Vec ToFloat(Acc acc) { return acc; }
  static Acc Add(Acc a, Acc b) { return Ops::Add(a, b); }
};

struct Float32Policy : FloatSums {
  using Element = float;
  using Weight = float;
  using Data = Ops::Vec;
  using Factor = Ops::Vec;
  static constexpr int kPerStep = 1;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static int VChunk(int head_dim) { return head_dim; }
  static Data Load(const Element* p) { return Ops::Load(p); }
  static Data LoadFirst(const Element* p) { return Ops::Load(p); }
  static Factor Broadcast(const Weight* w) { return Ops::Set1(*w); }
  static Ops::Vec Dot(Ops::Vec acc, Data data, Factor w) { return Ops::MulAdd(data, w, acc); }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

// Pairs widened to float32 in registers, for instruction sets without a pair product.
template <class Loader>
struct WidenedPolicy : FloatSums {
  struct Data {
    Ops::Vec even;
    Ops::Vec odd;
  };
  struct Factor {
    Ops::Vec even;
    Ops::Vec odd;
  };
  using Element = typename Loader::Element;
  using Weight = float;
  static constexpr int kPerStep = 2;
  static constexpr int kRegisters = 2;
  static constexpr bool kMayPrefetch = Ops::kMayPrefetch;
  static constexpr bool kScales = Loader::kScales;
  static constexpr float kFactor = Loader::kFactor;
  static int VChunk(int) { return kPairChunkColumns; }
  static Data Load(const Element* p) { return {Loader::Even(p), Loader::Odd(p)}; }
  static Data LoadFirst(const Element* p) { return {Loader::Even(p), Ops::Set1(0.0f)}; }
  static Factor Broadcast(const Weight* w) { return {Ops::Set1(w[0]), Ops::Set1(w[1])}; }
  static Ops::Vec Dot(Ops::Vec acc, const Data& data, const Factor& w) {
    return Ops::MulAdd(data.odd, w.odd, Ops::MulAdd(data.even, w.even, acc));
  }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

struct Bf16Loader {
  using Element = uint16_t;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static Ops::Vec Even(const Element* p) { return Ops::LoadEvenBf16(p); }
  static Ops::Vec Odd(const Element* p) { return Ops::LoadOddBf16(p); }
};

struct Int8Loader {
  using Element = int8_t;
  static constexpr bool kScales = true;
  static constexpr float kFactor = 1.0f;
  static Ops::Vec Even(const Element* p) { return Ops::LoadEvenInt8(p); }
  static Ops::Vec Odd(const Element* p) { return Ops::LoadOddInt8(p); }
};

struct Fp8Loader {
  using Element = uint8_t;
  static constexpr bool kScales = false;
  static constexpr float kFactor = Ops::kFp8Factor;
  static Ops::Vec Even(const Element* p) { return Ops::LoadEvenFp8(p); }
  static Ops::Vec Odd(const Element* p) { return Ops::LoadOddFp8(p); }
};

using WidenedBf16Policy = WidenedPolicy<Bf16Loader>;
using WidenedInt8Policy = WidenedPolicy<Int8Loader>;
using WidenedFp8Policy = WidenedPolicy<Fp8Loader>;

}  // namespace
}  // namespace tandem::attention
