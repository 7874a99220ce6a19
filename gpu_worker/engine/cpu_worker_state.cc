#include "gpu_worker/engine/cpu_worker_state.h"

#include <algorithm>

namespace tandem::gpu_worker {

void CpuWorkerState::OnUp() {
  is_up_ = true;
  given_up_ = false;
  OnStepDone();
}

void CpuWorkerState::OnDown(int64_t now_us) {
  is_up_ = false;
  if (away_since_us_ == kNotAway) {
    away_since_us_ = now_us;
  }
}

void CpuWorkerState::OnStepFailed(int64_t now_us) {
  if (away_since_us_ == kNotAway) {
    away_since_us_ = now_us;
  }
  retry_at_us_ = now_us + retry_us_;
  retry_us_ = std::min(2 * retry_us_, kLongestRetryUs);
}

void CpuWorkerState::OnStepDone() {
  if (is_up_) {
    away_since_us_ = kNotAway;
    retry_us_ = kFirstRetryUs;
    retry_at_us_ = 0;
  }
}

bool CpuWorkerState::GiveUpIfDue(int64_t now_us) {
  if (!is_up_ && away_since_us_ == kNotAway) {
    away_since_us_ = now_us;  // never seen so far: the clock starts with the first look
  }
  if (given_up_ || away_since_us_ == kNotAway || now_us - away_since_us_ < away_limit_us_) {
    return false;
  }
  given_up_ = true;
  return true;
}

int64_t CpuWorkerState::NextEventUs(int64_t now_us) const {
  if (away_since_us_ == kNotAway) {
    return 0;
  }
  if (given_up_) {
    return IsLost(now_us) ? 0 : away_since_us_ + lost_limit_us_;
  }
  const int64_t give_up_us = away_since_us_ + away_limit_us_;
  return is_up_ && retry_at_us_ > now_us ? std::min(retry_at_us_, give_up_us) : give_up_us;
}

}  // namespace tandem::gpu_worker
