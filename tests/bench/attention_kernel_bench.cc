// Decode attention kernels by themselves: every instruction set, with and without prefetches, in
// turns with the memory's read limit, over one pool on 2 MiB pages that is far larger than the
// caches. Run by hand:
//   build/tests/attention_kernel_bench --gib 4 --shapes llama3,qwen --kv-dtypes bfloat16,int8
//   --threads 2
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/str_split.h"
#include "common/attention_kernels/stream_read.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/shm/region.h"
#include "common/shm/residency.h"
#include "common/topology/topology.h"

namespace tandem::attention {
namespace {

struct Shape {
  const char* name;
  int q_heads;
  int kv_heads;
  int head_dim;
  int context;
  int block_tokens;
};
constexpr Shape kShapes[] = {
    {"llama3", 32, 8, 128, 1024, 128},    {"llama3-256", 32, 8, 128, 256, 128},
    {"llama2", 32, 32, 128, 1024, 128},   {"smollm2", 9, 3, 64, 1024, 128},
    {"qwen", 28, 4, 128, 1024, 128},      {"group8", 64, 8, 128, 1024, 128},
    {"group16", 32, 2, 128, 1024, 128},   {"dim80", 32, 32, 80, 1024, 128},
    {"dim96", 32, 32, 96, 1024, 128},     {"dim256", 8, 4, 256, 1024, 128},
    {"llama3-b16", 32, 8, 128, 1024, 16}, {"llama3-257", 32, 8, 128, 257, 128},
    {"dim32", 8, 2, 32, 1024, 128}};

struct Flags {
  int64_t gib = 4;
  int64_t threads = 2;
  int64_t rounds = 15;
  int64_t chunk_mib = 128;
  std::string shapes = "llama3,llama3-256,llama2,smollm2,qwen,group8,group16";
  std::string kv_dtypes = "bfloat16,int8";
  std::string isas = "avx2,avx512,avx512_bf16,amx_bf16";
};

struct Pool {
  shm::Region region;
  uint64_t cursor = 0;  // where the next run starts, so that no run finds its data in a cache
};

// Words that are a normal value in every KV dtype, scales included.
void Fill(std::byte* data, uint64_t bytes) {
  std::mt19937 random(1);
  std::vector<uint32_t> pattern(1048573);
  for (uint32_t& word : pattern) {
    word = 0x3c003c00u | (static_cast<uint32_t>(random()) & 0x807f807fu);
  }
  for (uint64_t at = 0; at < bytes; at += pattern.size() * 4) {
    std::memcpy(data + at, pattern.data(), std::min<uint64_t>(pattern.size() * 4, bytes - at));
  }
}

// Seconds from the first thread's start to the last one's end.
template <class Function>
double Together(const std::vector<int>& cpus, const Function& function) {
  std::atomic<size_t> arrived{0};
  std::vector<int64_t> start(cpus.size());
  std::vector<int64_t> end(cpus.size());
  std::vector<std::thread> members;
  for (size_t i = 0; i < cpus.size(); ++i) {
    members.emplace_back([&, i] {
      topology::PinThisThread(cpus[i]).IgnoreError();
      arrived.fetch_add(1);
      while (arrived.load() < cpus.size()) {
        std::this_thread::yield();
      }
      start[i] = base::SystemClock().NowUs();
      function(i);
      end[i] = base::SystemClock().NowUs();
    });
  }
  for (std::thread& member : members) {
    member.join();
  }
  return static_cast<double>(*std::max_element(end.begin(), end.end()) -
                             *std::min_element(start.begin(), start.end())) *
         1e-6;
}

class ShapeBench {
 public:
  ShapeBench(const Shape& shape, DType dtype, Pool* pool)
      : shape_(shape),
        pool_(pool),
        geometry_{dtype, 1, shape.kv_heads, shape.head_dim, shape.block_tokens} {
    table_.resize(pool->region.size() / geometry_.block_bytes());
    for (size_t i = 0; i < table_.size(); ++i) {
      table_[i] = static_cast<int32_t>(i);
    }
    // Random placement among neighbours, so that the pool's parts are still read in turns.
    std::mt19937 random(7);
    const size_t window = std::max<size_t>(1, (256u << 20) / geometry_.block_bytes());
    for (size_t i = 0; i < table_.size(); i += window) {
      std::shuffle(table_.begin() + static_cast<ptrdiff_t>(i),
                   table_.begin() + static_cast<ptrdiff_t>(std::min(table_.size(), i + window)),
                   random);
    }
    q_.assign(static_cast<size_t>(shape.q_heads * shape.head_dim), 0x3f80);
  }

  // Needed bytes per second.
  double Run(Isa isa, Prefetch prefetch, const std::vector<int>& cpus, uint64_t chunk) {
    const AttendSegmentFn attend = GetAttendSegment(isa, geometry_).value();
    const auto blocks_per_row =
        static_cast<uint64_t>((shape_.context + shape_.block_tokens - 1) / shape_.block_tokens);
    const uint64_t row_bytes = blocks_per_row * geometry_.block_bytes();
    const uint64_t rows = std::max<uint64_t>(cpus.size(), chunk / row_bytes);
    uint64_t first = pool_->cursor / geometry_.block_bytes();
    if (first + rows * blocks_per_row > table_.size()) {
      first = 0;
    }
    pool_->cursor = (first + rows * blocks_per_row) * geometry_.block_bytes();
    const double seconds = Together(cpus, [&](size_t member) {
      std::vector<float> out(q_.size());
      std::vector<float> lse(static_cast<size_t>(shape_.q_heads));
      for (uint64_t row = member; row < rows; row += cpus.size()) {
        SegmentArgs args;
        args.pool = pool_->region.data();
        args.block_table = &table_[first + row * blocks_per_row];
        args.num_tokens = shape_.context;
        args.kv_head_end = shape_.kv_heads;
        args.group_size = shape_.q_heads / shape_.kv_heads;
        args.q = q_.data();
        args.q_dtype = DType::kBFloat16;
        args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
        args.prefetch = prefetch;
        args.out = out.data();
        args.log_sum_exp = lse.data();
        attend(geometry_, args);
      }
    });
    return static_cast<double>(rows * static_cast<uint64_t>(shape_.context) *
                               geometry_.token_bytes()) /
           seconds;
  }

 private:
  Shape shape_;
  Pool* pool_;
  kv::PoolGeometry geometry_;
  std::vector<int32_t> table_;
  std::vector<uint16_t> q_;
};

double ReadRate(const StreamReadForm& form, const std::vector<int>& cpus, uint64_t chunk,
                Pool* pool) {
  const uint64_t share = chunk / cpus.size() / kStreamReadGrain * kStreamReadGrain;
  if (pool->cursor + chunk > pool->region.size()) {
    pool->cursor = 0;
  }
  const std::byte* from = pool->region.data() + pool->cursor / 4096 * 4096;
  pool->cursor += chunk;
  std::atomic<uint64_t> sink{0};
  const double seconds =
      Together(cpus, [&](size_t member) { sink += form.read(from + member * share, share); });
  return static_cast<double>(share * cpus.size()) / seconds;
}

struct Variant {
  std::string name;
  std::function<double()> run;
  std::vector<double> rates = {};
};

// The machine may be shared: the best of all rounds says what a loop can do, the median what it
// did.
void Print(const Shape& shape, DType dtype, std::vector<Variant>& variants, size_t num_reads) {
  double best_read = 0;
  double median_read = 0;
  for (size_t i = 0; i < variants.size(); ++i) {
    std::vector<double>& rates = variants[i].rates;
    std::sort(rates.begin(), rates.end());
    if (i < num_reads) {
      best_read = std::max(best_read, rates.back());
      median_read = std::max(median_read, rates[rates.size() / 2]);
    }
  }
  std::printf("%-11s %-9s read best %5.1f median %5.1f GB/s, ratios best/median:", shape.name,
              DTypeName(dtype), best_read * 1e-9, median_read * 1e-9);
  for (size_t i = num_reads; i < variants.size(); ++i) {
    const std::vector<double>& rates = variants[i].rates;
    std::printf(" | %s %.2f/%.2f", variants[i].name.c_str(), rates.back() / best_read,
                rates[rates.size() / 2] / median_read);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void Measure(const Flags& flags, const Shape& shape, DType dtype, const std::vector<int>& cpus,
             Pool* pool) {
  ShapeBench bench(shape, dtype, pool);
  const uint64_t chunk = static_cast<uint64_t>(flags.chunk_mib) << 20;
  std::vector<Variant> variants;
  for (const StreamReadForm& form : StreamReadForms(SupportedIsas().front())) {
    variants.push_back({form.name, [&, form] { return ReadRate(form, cpus, chunk, pool); }});
  }
  const size_t num_reads = variants.size();
  for (const auto name : absl::StrSplit(flags.isas, ',')) {
    const absl::StatusOr<Isa> chosen = ChooseIsa(std::string(name));
    if (!chosen.ok()) {
      continue;
    }
    const Isa isa = *chosen;
    const std::pair<Prefetch, const char*> prefetches[] = {
        {Prefetch::kOff, ""}, {Prefetch::kNextTile, "+next"}, {Prefetch::kAhead, "+ahead"}};
    for (const auto& [prefetch, suffix] : prefetches) {
      if (prefetch == Prefetch::kOff || isa != Isa::kScalar) {
        const Prefetch asked = prefetch;
        variants.push_back({std::string(IsaName(isa)) + suffix,
                            [&, isa, asked] { return bench.Run(isa, asked, cpus, chunk); }});
      }
    }
  }
  for (int64_t round = 0; round < flags.rounds; ++round) {
    for (Variant& variant : variants) {
      variant.rates.push_back(variant.run());
    }
  }
  Print(shape, dtype, variants, num_reads);
}

int Main(int argc, char** argv) {
  Flags flags;
  base::ConfigSpec spec("attention_kernel_bench",
                        "Decode attention kernels against the read limit.");
  spec.Int("gib", &flags.gib, 1, 1024, "size of the pool");
  spec.Int("threads", &flags.threads, 1, 1024, "threads");
  spec.Int("rounds", &flags.rounds, 1, 1000, "rounds, of which the median counts");
  spec.Int("chunk-mib", &flags.chunk_mib, 1, 65536, "what one measurement reads");
  spec.String("shapes", &flags.shapes, "names with commas between");
  spec.String("kv-dtypes", &flags.kv_dtypes, "float32, bfloat16, int8, fp8_e4m3");
  spec.String("isas", &flags.isas, "instruction sets");
  if (const std::optional<int> status = spec.ParseMain(argc, argv)) {
    return *status;
  }
  Pool pool;
  const uint64_t bytes = static_cast<uint64_t>(flags.gib) << 30;
  pool.region = std::move(shm::Region::Create("tandem-kernel-bench", bytes).value());
  shm::PopulatePages(pool.region.data(), bytes).IgnoreError();
  shm::CollapseToHugePages(pool.region.data(), bytes).IgnoreError();
  Fill(pool.region.data(), bytes);
  std::printf("%.0f%% on 2 MiB pages\n",
              100.0 * static_cast<double>(shm::HugePageBytes(pool.region.data(), bytes)) /
                  static_cast<double>(bytes));
  const auto machine = topology::Topology::Load().value();
  const auto cpus =
      topology::ChoosePlacement(machine->snapshot(), {.threads = flags.threads}).value().cpus;
  for (const auto name : absl::StrSplit(flags.shapes, ',')) {
    for (const Shape& shape : kShapes) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kFloat8E4M3}) {
        const std::vector<std::string> wanted = absl::StrSplit(flags.kv_dtypes, ',');
        if (name == shape.name &&
            std::find(wanted.begin(), wanted.end(), DTypeName(dtype)) != wanted.end()) {
          Measure(flags, shape, dtype, cpus, &pool);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem::attention

int main(int argc, char** argv) { return tandem::attention::Main(argc, argv); }
