#include "router/router_core/sequence_state.h"

#include <utility>

namespace tandem::router {
namespace {

ApiError WorkerFailed() {
  return {502, "The worker failed and no other could take over.", "", "worker_failed"};
}

}  // namespace

const char* RecoveryReasonName(RecoveryReason reason) {
  switch (reason) {
    case RecoveryReason::kUnavailable:
      return "unavailable";
    case RecoveryReason::kResourceExhausted:
      return "resource_exhausted";
    case RecoveryReason::kWorkerError:
      return "worker_error";
  }
  return "unavailable";
}

void SequenceState::OnSiblingDispatched(int64_t now_us) {
  last_error_ = WorkerFailed();
  recovering_ = true;
  may_wait_ = true;
  wait_deadline_us_ = now_us + limits_.resume_timeout_us;
}

void SequenceState::OnDispatched(int worker) {
  worker_ = worker;
  ++attempts_;
  ++attempts_without_token_;
}

void SequenceState::OnTokens(std::span<const int32_t> tokens) {
  if (tokens.empty()) {
    return;
  }
  generated_.insert(generated_.end(), tokens.begin(), tokens.end());
  attempts_without_token_ = 0;
}

Decision SequenceState::Fail(ApiError error) const {
  Decision decision;
  decision.error = std::move(error);
  return decision;
}

Decision SequenceState::Recover(RecoveryReason reason, bool may_wait, int64_t now_us) {
  if (attempts_without_token_ >= limits_.max_attempts_without_token ||
      attempts_ >= limits_.max_attempts) {
    return Fail(last_error_);
  }
  recovering_ = true;
  resumed_ = !generated_.empty();
  may_wait_ = may_wait;
  wait_deadline_us_ = now_us + limits_.resume_timeout_us;
  excluded_workers_.push_back(worker_);
  Decision decision;
  decision.step = Decision::Step::kDispatch;
  decision.reason = reason;
  return decision;
}

Decision SequenceState::OnAttemptEnded(const AttemptEnd& end, int64_t now_us) {
  const bool started = !generated_.empty();
  switch (end.code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return Fail(InvalidRequest(end.message, end.param, end.error_code));
    case absl::StatusCode::kUnimplemented:
      return Fail({501, end.message, end.param, "not_available"});
    case absl::StatusCode::kDeadlineExceeded:
      return Fail({504, "The request's deadline passed.", "", "deadline_exceeded"});
    case absl::StatusCode::kResourceExhausted:
      last_error_ = Overloaded("Too many requests are waiting; try again later.");
      return Recover(RecoveryReason::kResourceExhausted, /*may_wait=*/false, now_us);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
      // The worker refuses because it drains, or is gone: gRPC does not tell which. A stream that
      // was cut may end as UNKNOWN ("Stream removed"); no worker answers with it.
      last_error_ = WorkerFailed();
      return Recover(RecoveryReason::kUnavailable, /*may_wait=*/true, now_us);
    default:
      last_error_ = WorkerFailed();
      return Recover(RecoveryReason::kWorkerError, /*may_wait=*/started, now_us);
  }
}

Decision SequenceState::OnNoWorker(int64_t now_us) {
  if (!recovering_) {
    return Fail(NotReady("No worker is ready."));
  }
  if (!may_wait_ || now_us >= wait_deadline_us_) {
    return Fail(last_error_);
  }
  Decision decision;
  decision.step = Decision::Step::kWait;
  decision.deadline_us = wait_deadline_us_;
  // A drain refuses what has not begun; what has begun outlives the worker.
  decision.unless_refused = generated_.empty();
  return decision;
}

ApiError SequenceState::OnRefused() const {
  return NotReady("No worker takes requests at the moment.");
}

}  // namespace tandem::router
