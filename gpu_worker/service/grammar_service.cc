#include "gpu_worker/service/grammar_service.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/status.h"
#include "common/structured_output/compiled_grammar.h"
#include "common/structured_output/grammar_text.h"
#include "common/structured_output/probe_grammar.h"
#include "gpu_worker/service/grammar_constraint.h"
#include "gpu_worker/service/mask_team.h"

namespace tandem::gpu_worker {
namespace {

using structured_output::CompiledGrammar;
using structured_output::GrammarCompiler;
using structured_output::GrammarSpec;

constexpr int kMaskThreads = 2;
constexpr size_t kMaxCached = 512;
constexpr int kMaxAbandoned = 2;     // compiles that went over the limit and still hold a thread
constexpr int64_t kQueueLimits = 3;  // compile limits that a grammar waits for its turn
using Waiting = std::vector<std::pair<std::string, GrammarService::OnPrepared>>;
using Compiled = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;

std::string KeyOf(const GrammarSpec& spec) {
  std::string key =
      base::StrCat(static_cast<int>(spec.kind), "\n", spec.text.size(), "\n", spec.text);
  for (const std::string& choice : spec.choices) {
    base::StrAppend(&key, choice.size(), "\n", choice);
  }
  return key;
}

absl::Status AtFault(const absl::Status& status, const std::string& param) {
  return rpc::WithErrorDetail(absl::InvalidArgumentError(base::StrCat(
                                  "`", param, "` cannot be followed: ", status.message())),
                              param);
}

// The most recently used ones, within a number of bytes.
class GrammarCache {
 public:
  explicit GrammarCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  std::shared_ptr<const CompiledGrammar> Find(const std::string& key) {
    const auto it = places_.find(key);
    if (it == places_.end()) {
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->grammar;
  }
  void Add(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar) {
    bytes_ += CompiledBytes(*grammar) + key.size();
    entries_.push_front({key, std::move(grammar)});
    places_[key] = entries_.begin();
    while (entries_.size() > 1 && (bytes_ > max_bytes_ || entries_.size() > kMaxCached)) {
      bytes_ -= CompiledBytes(*entries_.back().grammar) + entries_.back().key.size();
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> places_;
};

// One grammar on its way.
struct Job {
  std::string key;
  GrammarSpec spec;
  Waiting waiting;  // with their requests' fields
  int64_t queued_us = 0;
  int64_t started_us = 0;
  bool abandoned = false;
};

class ThreadedGrammarService : public GrammarService {
 public:
  explicit ThreadedGrammarService(GrammarOptions options)
      : options_(std::move(options)),
        team_(std::make_shared<MaskTeam>(kMaskThreads)),
        cache_(options_.cache_bytes) {
    const std::scoped_lock lock(mutex_);
    AddThread();
    watch_ = std::thread([this] { Watch(); });
  }

  ~ThreadedGrammarService() override {
    Waiting open;
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
      while (!jobs_.empty()) {
        TakeWaiting(jobs_.begin()->second, &open);
      }
      queue_.clear();
    }
    changed_.notify_all();
    Answer(open, absl::UnavailableError("the worker is stopping"));
    watch_.join();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void Prepare(const GrammarSpec& spec, OnPrepared on_prepared) override {
    if (options_.tokenizer == nullptr) {
      on_prepared(absl::UnimplementedError("structured output needs a model with a tokenizer"));
      return;
    }
    std::string key = KeyOf(spec);
    std::unique_lock lock(mutex_);
    if (std::shared_ptr<const CompiledGrammar> known = cache_.Find(key)) {
      lock.unlock();
      on_prepared(Constrain(std::move(known)));
      return;
    }
    std::shared_ptr<Job>& job = jobs_[key];
    if (job == nullptr) {
      if (queue_.size() >= options_.max_waiting || stopping_) {
        jobs_.erase(key);
        lock.unlock();
        on_prepared(absl::ResourceExhaustedError("too many grammars wait to be prepared"));
        return;
      }
      job = std::make_shared<Job>();
      job->key = std::move(key);
      job->spec = spec;
      job->queued_us = clock_.NowUs();
      queue_.push_back(job);
    }
    job->waiting.emplace_back(spec.param, std::move(on_prepared));
    lock.unlock();
    changed_.notify_all();
  }

 private:
  absl::StatusOr<std::shared_ptr<TokenConstraint>> Constrain(
      std::shared_ptr<const CompiledGrammar> grammar) const {
    return MakeGrammarConstraint(std::move(grammar), options_.vocab_size, team_,
                                 options_.mask_limit_us);
  }

  // The job's callers will hear from whoever called this.
  void TakeWaiting(const std::shared_ptr<Job>& job, Waiting* waiting) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): `job` may be the map's own
    const std::shared_ptr<Job> kept = job;
    std::move(kept->waiting.begin(), kept->waiting.end(), std::back_inserter(*waiting));
    kept->waiting.clear();
    const auto it = jobs_.find(kept->key);
    if (it != jobs_.end() && it->second == kept) {
      jobs_.erase(it);
    }
  }

  void Answer(const Waiting& waiting, const Compiled& compiled) const {
    for (const auto& [param, on_prepared] : waiting) {
      if (compiled.ok()) {
        on_prepared(Constrain(*compiled));
      } else if (absl::IsUnavailable(compiled.status()) ||
                 absl::IsFailedPrecondition(compiled.status())) {
        on_prepared(absl::IsUnavailable(compiled.status())
                        ? compiled.status()
                        : absl::UnimplementedError(compiled.status().message()));
      } else {
        on_prepared(AtFault(compiled.status(), param));
      }
    }
  }

  void AddThread() {
    threads_.emplace_back([this] { Loop(); });
  }

  void Loop() {
    // Steps go first where cores are short.
    constexpr int kNice = 10;
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) {
        return;
      }
      const std::shared_ptr<Job> job = queue_.front();
      queue_.pop_front();
      job->started_us = clock_.NowUs();
      running_.push_back(job);
      changed_.notify_all();
      lock.unlock();
      const Compiled compiled = Compile(job->spec);
      lock.lock();
      running_.remove(job);
      if (compiled.ok() && cache_.Find(job->key) == nullptr) {
        cache_.Add(job->key, *compiled);
      }
      if (job->abandoned) {
        --abandoned_;
        return;  // another thread took this one's place
      }
      Waiting waiting;
      TakeWaiting(job, &waiting);
      lock.unlock();
      Answer(waiting, compiled);
      lock.lock();
    }
  }

  Compiled Compile(const GrammarSpec& spec) {
    const int64_t started_us = clock_.NowUs();
    TANDEM_RETURN_IF_ERROR(MakeCompiler());
    TANDEM_ASSIGN_OR_RETURN(const std::string text, structured_output::GrammarText(spec));
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledGrammar> grammar,
                            compiler_->Compile(text));
    TANDEM_RETURN_IF_ERROR(structured_output::ProbeGrammar(grammar, options_.vocab_size, clock_));
    base::LogDebug("grammar prepared", {{"bytes", static_cast<uint64_t>(text.size())},
                                        {"ms", (clock_.NowUs() - started_us) / 1000}});
    return grammar;
  }

  // FailedPrecondition: there will never be one.
  absl::Status MakeCompiler() {
    const std::scoped_lock lock(compiler_mutex_);
    if (compiler_ == nullptr && compiler_status_.ok()) {
      auto compiler =
          GrammarCompiler::Create(*options_.tokenizer, options_.vocab_size, options_.eos_token_ids);
      if (compiler.ok()) {
        compiler_ = *std::move(compiler);
      } else {
        base::LogWarning("structured output is not available",
                         {{"error", std::string(compiler.status().message())}});
        compiler_status_ = absl::FailedPreconditionError(compiler.status().message());
      }
    }
    return compiler_status_;
  }

  // Answers those who waited too long, and lets others pass the compile that does not end.
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      Waiting late;
      const int64_t now_us = clock_.NowUs();
      for (const std::shared_ptr<Job>& job : running_) {
        if (now_us - job->started_us <= options_.compile_limit_us) {
          continue;
        }
        TakeWaiting(job, &late);
        if (!job->abandoned && abandoned_ < kMaxAbandoned) {
          job->abandoned = true;
          ++abandoned_;
          AddThread();
        }
      }
      while (!queue_.empty() &&
             now_us - queue_.front()->queued_us > kQueueLimits * options_.compile_limit_us) {
        TakeWaiting(queue_.front(), &late);
        queue_.pop_front();
      }
      lock.unlock();
      Answer(late,
             absl::ResourceExhaustedError(base::StrCat(
                 "it takes longer than ", options_.compile_limit_us / 1'000'000, " s to prepare")));
      lock.lock();
    }
  }

  const GrammarOptions options_;
  const base::Clock& clock_ = base::SystemClock();
  const std::shared_ptr<MaskTeam> team_;

  std::mutex compiler_mutex_;
  std::unique_ptr<GrammarCompiler> compiler_;
  absl::Status compiler_status_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  GrammarCache cache_;
  absl::flat_hash_map<std::string, std::shared_ptr<Job>> jobs_;  // queued and running
  std::deque<std::shared_ptr<Job>> queue_;
  std::list<std::shared_ptr<Job>> running_;
  int abandoned_ = 0;
  std::list<std::thread> threads_;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<GrammarService> GrammarService::Create(GrammarOptions options) {
  return std::make_unique<ThreadedGrammarService>(std::move(options));
}

}  // namespace tandem::gpu_worker
