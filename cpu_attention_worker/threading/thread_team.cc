#include "cpu_attention_worker/threading/thread_team.h"

#include <pthread.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/topology/topology.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr int64_t kForeverUs = INT64_MAX / 2;
// Idle members look up this often; only a lost wake would make them need to.
constexpr int64_t kIdleParkUs = 500'000;

// Half of a core's second-level cache: queries, outputs and what is under way need room, too.
size_t PrefetchBytes() {
  constexpr long kUnknownCacheBytes = 512 << 10;
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return static_cast<size_t>(bytes > 0 ? bytes : kUnknownCacheBytes) / 2;
}

void Pin(int cpu) {
  if (cpu < 0) {
    return;
  }
  if (absl::Status status = topology::PinThisThread(cpu); !status.ok()) {
    base::LogWarning("attention thread stays unpinned",
                     {{"cpu", cpu}, {"error", std::string(status.message())}});
  }
}

}  // namespace

ThreadTeam::ThreadTeam(const std::vector<int>& cpus)
    : cpus_(cpus), prefetch_lists_(cpus.size(), PrefetchList(PrefetchBytes())) {
  for (int member = 1; member < size(); ++member) {
    threads_.emplace_back([this, member] { MemberLoop(member); });
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true, std::memory_order_relaxed);
  exchange::IncrementAndWake(generation_);
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadTeam::PinCaller() const { Pin(cpus_[0]); }

void ThreadTeam::SetPolicy(const exchange::WaitPolicy& policy) {
  shared_cores_.store(policy.spins == 0);
}

exchange::WaitPolicy ThreadTeam::Policy() const {
  return shared_cores_.load(std::memory_order_relaxed) ? exchange::WaitPolicy::SharedCores()
                                                       : exchange::WaitPolicy::OwnCores();
}

void ThreadTeam::Run(absl::FunctionRef<void(int)> job) {
  if (threads_.empty()) {
    job(0);
    return;
  }
  job_ = &job;
  running_.value.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  exchange::IncrementAndWake(generation_);
  job(0);
  exchange::WaitUntil(
      running_, [this] { return running_.value.load(std::memory_order_acquire) == 0; }, kForeverUs,
      Policy());
}

void ThreadTeam::MemberLoop(int member) {
  pthread_setname_np(pthread_self(), "attend");
  Pin(cpus_[static_cast<size_t>(member)]);
  uint32_t seen = 0;
  while (true) {
    exchange::WaitPolicy policy = Policy();
    policy.park_us = kIdleParkUs;
    exchange::WaitUntil(
        generation_,
        [this, seen] { return generation_.value.load(std::memory_order_acquire) != seen; },
        kForeverUs, policy);
    seen = generation_.value.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    (*job_)(member);
    if (running_.value.fetch_sub(1, std::memory_order_seq_cst) == 1) {
      exchange::WakeParked(running_);
    }
    PrefetchList& reads = prefetch_list(member);
    while (generation_.value.load(std::memory_order_relaxed) == seen && reads.Step()) {
    }
  }
}

}  // namespace tandem::cpu_attention_worker
