#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// How one call to a worker ended without the sequence having finished.
struct AttemptEnd {
  absl::StatusCode code = absl::StatusCode::kUnknown;  // kOk: the stream ended without a reason
  std::string message;
  std::string param;
  std::string error_code;
};

// Why a sequence went to another worker; bounded, for metrics.
enum class RecoveryReason { kUnavailable, kResourceExhausted, kWorkerError };
inline constexpr int kRecoveryReasonCount = 3;
const char* RecoveryReasonName(RecoveryReason reason);

struct RecoveryLimits {
  int64_t resume_timeout_us = 30'000'000;  // wait for a worker after one was lost
  int max_attempts_without_token = 3;
  int max_attempts = 16;
};

// What to do next about a sequence. kDispatch: pick a worker that is not in excluded_workers() and
// send what is left to do. kWait: until a worker becomes ready, or deadline_us, or, with
// unless_refused, every worker is known to be there and to take nothing. kFail: tell the client
// `error`.
struct Decision {
  enum class Step { kDispatch, kWait, kFail };
  Step step = Step::kFail;
  ApiError error;
  int64_t deadline_us = 0;
  bool unless_refused = false;
  RecoveryReason reason = RecoveryReason::kUnavailable;
};

// The attempts of one output sequence: which workers were tried, which tokens exist already, and
// what follows from a worker's refusal or death. Pure: times are arguments. Not thread-safe.
class SequenceState {
 public:
  explicit SequenceState(const RecoveryLimits& limits) : limits_(limits) {}

  // Another sequence of the same request runs already: this one may wait for a worker as well.
  void OnSiblingDispatched(int64_t now_us);
  void OnDispatched(int worker);
  // Every token that the worker generated, in order.
  void OnTokens(std::span<const int32_t> tokens);
  // The call to the worker of the last OnDispatched ended early.
  Decision OnAttemptEnded(const AttemptEnd& end, int64_t now_us);
  // No worker can take the sequence now.
  Decision OnNoWorker(int64_t now_us);
  // A wait ended because a worker became ready.
  void OnWorkerReady() { excluded_workers_.clear(); }
  // A wait ended without a worker.
  ApiError OnWaitExpired() const { return last_error_; }
  // A wait ended because every worker refuses.
  ApiError OnRefused() const;

  const std::vector<int32_t>& generated() const { return generated_; }
  const std::vector<int>& excluded_workers() const { return excluded_workers_; }
  int attempts() const { return attempts_; }
  // More than one worker is or was concerned, or the same one after its restart.
  bool recovering() const { return recovering_; }
  // The present attempt continues a text that had begun.
  bool resumed() const { return resumed_; }

 private:
  Decision Fail(ApiError error) const;
  Decision Recover(RecoveryReason reason, bool may_wait, int64_t now_us);

  RecoveryLimits limits_;
  std::vector<int32_t> generated_;
  std::vector<int> excluded_workers_;
  int worker_ = -1;
  int attempts_ = 0;
  int attempts_without_token_ = 0;
  bool recovering_ = false;
  bool resumed_ = false;
  bool may_wait_ = false;
  int64_t wait_deadline_us_ = 0;
  ApiError last_error_;
};

}  // namespace tandem::router
