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

constexpr int kChunkColumns = 64;  // V columns that stand together where lanes hold several tokens

// A policy says how a line of 64 bytes is multiplied. Each of its 16 lanes holds `kPerLane`
// dimensions of K (tokens of V); weights (queries, probabilities) are as many consecutive elements.
// `kParts`: how many products a line takes; part i multiplies one or two elements of each lane.
// `kScales`: each token has a scale beside its tile. `kFactor`: what every product has to be
// multiplied with besides. `kInteger`: weights are integers with a scale for each query head, and
// sums are integers too. `kMayPrefetch`: compiled with and without prefetches.
// `kPrefetchLocality`: where to. `kRegisters`: of a part's data, and of its factor.
struct FloatSums {
  using Acc = Ops::Vec;
  static constexpr bool kInteger = false;
  static constexpr bool kMayPrefetch = false;
  static constexpr int kPrefetchLocality = kSecondLevel;
  static constexpr int kRegisters = 1;
  static constexpr int kParts = 1;
  static Acc Zero() { return Ops::Set1(0.0f); }
  static Ops::Vec ToFloat(Acc acc) { return acc; }
  static Acc Add(Acc a, Acc b) { return Ops::Add(a, b); }
};

struct Float32Policy : FloatSums {
  using Element = float;
  using Weight = float;
  using Data = Ops::Vec;
  using Factor = Ops::Vec;
  static constexpr int kPerLane = 1;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static int VChunk(int head_dim) { return head_dim; }
  template <int kPart>
  static Data Load(const Element* p) {
    return Ops::Load(p);
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    return Ops::Set1(*w);
  }
  static Ops::Vec Dot(Ops::Vec acc, Data data, Factor w) { return Ops::MulAdd(data, w, acc); }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

// Widened to float32 in registers, for instruction sets without a product of the type: two elements
// of each lane at a time, those of a lane's lower and upper half that have the same place in it.
template <class Loader>
struct WidenedPolicy : FloatSums {
  struct Data {
    Ops::Vec lower;
    Ops::Vec upper;
  };
  using Factor = Data;
  using Element = typename Loader::Element;
  using Weight = float;
  static constexpr int kPerLane = 4 / sizeof(Element);
  static constexpr int kParts = kPerLane / 2;
  static constexpr int kRegisters = 2;
  static constexpr bool kMayPrefetch = Ops::kMayPrefetch;
  static constexpr bool kScales = Loader::kScales;
  static constexpr float kFactor = Loader::kFactor;
  static int VChunk(int) { return kChunkColumns; }
  template <int kPart>
  static Data Load(const Element* p) {
    Data data;
    Loader::template Load<kPart>(p, &data.lower, &data.upper);
    return data;
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    return {Ops::Set1(w[kPart]), Ops::Set1(w[kPart + kParts])};
  }
  static Ops::Vec Dot(Ops::Vec acc, const Data& data, const Factor& w) {
    return Ops::MulAdd(data.upper, w.upper, Ops::MulAdd(data.lower, w.lower, acc));
  }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

struct Bf16Loader {
  using Element = uint16_t;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  template <int kPart>
  static void Load(const Element* p, Ops::Vec* lower, Ops::Vec* upper) {
    *lower = Ops::LoadEvenBf16(p);
    *upper = Ops::LoadOddBf16(p);
  }
};

struct Int8Loader {
  using Element = int8_t;
  static constexpr bool kScales = true;
  static constexpr float kFactor = 1.0f;
  template <int kPart>
  static void Load(const Element* p, Ops::Vec* lower, Ops::Vec* upper) {
    *lower = Ops::LoadInt8<kPart>(p);
    *upper = Ops::LoadInt8<kPart + 2>(p);
  }
};

struct Fp8Loader {
  using Element = uint8_t;
  static constexpr bool kScales = false;
  static constexpr float kFactor = Ops::kFp8Factor;
  template <int kPart>
  static void Load(const Element* p, Ops::Vec* lower, Ops::Vec* upper) {
    Ops::LoadFp8<kPart>(p, lower, upper);
  }
};

using WidenedBf16Policy = WidenedPolicy<Bf16Loader>;
using WidenedInt8Policy = WidenedPolicy<Int8Loader>;
using WidenedFp8Policy = WidenedPolicy<Fp8Loader>;

}  // namespace
}  // namespace tandem::attention
