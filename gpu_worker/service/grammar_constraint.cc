#include "gpu_worker/service/grammar_constraint.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

using structured_output::GrammarMatcher;

// A mask that nobody computes after this long means that all threads are busy with something long.
constexpr std::chrono::milliseconds kTurnLimit(50);

// What the sequence and a running job share.
class Follower {
 public:
  Follower(std::unique_ptr<GrammarMatcher> matcher, size_t mask_words)
      : matcher_(std::move(matcher)), mask_(mask_words) {}

  // True when a job must run.
  bool Ask(std::span<const int32_t> output) {
    const std::scoped_lock lock(mutex_);
    if (asked_ && output.size() <= wanted_.size()) {
      return false;  // a repeated step
    }
    wanted_.insert(wanted_.end(), output.begin() + static_cast<ptrdiff_t>(wanted_.size()),
                   output.end());
    asked_ = true;
    if (busy_) {
      return false;  // its job goes on with the new tokens
    }
    ready_ = false;
    busy_ = true;
    started_ = false;
    return true;
  }

  void Work() {
    std::unique_lock lock(mutex_);
    started_ = true;
    changed_.notify_all();
    while (failure_.ok()) {
      const std::vector<int32_t> tokens(wanted_.begin() + static_cast<ptrdiff_t>(followed_),
                                        wanted_.end());
      lock.unlock();
      const absl::Status status = Follow(tokens);
      lock.lock();
      failure_ = status;
      if (followed_ == wanted_.size()) {
        break;
      }
    }
    busy_ = false;
    ready_ = true;
    changed_.notify_all();
  }

  absl::StatusOr<std::span<const uint32_t>> Wait(MaskTeam* team, int64_t limit_us) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kTurnLimit, [this] { return ready_ || started_; })) {
      lock.unlock();
      team->AddThread();
      lock.lock();
    }
    if (!changed_.wait_for(lock, std::chrono::microseconds(limit_us), [this] { return ready_; })) {
      return absl::InvalidArgumentError(
          "the grammar takes too long to follow; simplify its repetitions");
    }
    if (!failure_.ok()) {
      return failure_;
    }
    return std::span<const uint32_t>(mask_);
  }

 private:
  // Only the job that is busy comes here.
  absl::Status Follow(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
      if (!matcher_->Accept(token)) {
        return absl::InternalError(
            base::StrCat("token ", token, " does not follow the grammar of its sequence"));
      }
      ++followed_;
    }
    std::fill(mask_.begin(), mask_.end(), 0);
    return matcher_->FillMask(mask_) ? absl::OkStatus()
                                     : absl::InternalError("the grammar gives no mask");
  }

  std::unique_ptr<GrammarMatcher> matcher_;  // the busy job's
  std::vector<uint32_t> mask_;               // the busy job's until ready_
  size_t followed_ = 0;                      // the busy job's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> wanted_;  // the output to follow
  bool asked_ = false;
  bool busy_ = false;
  bool started_ = false;
  bool ready_ = false;
  absl::Status failure_;
};

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<Follower> follower, std::shared_ptr<MaskTeam> team,
                    int64_t limit_us)
      : follower_(std::move(follower)), team_(std::move(team)), limit_us_(limit_us) {}

  void Begin(std::span<const int32_t> output_tokens) override {
    if (follower_->Ask(output_tokens)) {
      team_->Run([follower = follower_] { follower->Work(); });
    }
  }
  absl::StatusOr<std::span<const uint32_t>> Wait() override {
    return follower_->Wait(team_.get(), limit_us_);
  }

 private:
  std::shared_ptr<Follower> follower_;
  std::shared_ptr<MaskTeam> team_;
  int64_t limit_us_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TokenConstraint>> MakeGrammarConstraint(
    std::shared_ptr<const structured_output::CompiledGrammar> grammar, int32_t vocab_size,
    std::shared_ptr<MaskTeam> team, int64_t mask_limit_us) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<GrammarMatcher> matcher,
                          GrammarMatcher::Create(std::move(grammar)));
  auto follower =
      std::make_shared<Follower>(std::move(matcher), (static_cast<size_t>(vocab_size) + 31) / 32);
  return std::make_shared<GrammarConstraint>(std::move(follower), std::move(team), mask_limit_us);
}

}  // namespace tandem::gpu_worker
