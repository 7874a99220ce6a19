#pragma once

#include <cstdint>

namespace tandem::gpu_worker {

// Whether steps may use the CPU tier: what the link says, and how long to hold off after steps that
// failed. Pure: times are arguments.
class CpuWorkerState {
 public:
  CpuWorkerState(int64_t away_limit_us, int64_t lost_limit_us)
      : away_limit_us_(away_limit_us), lost_limit_us_(lost_limit_us) {}

  void OnUp();
  void OnDown(int64_t now_us);
  // A step that used the CPU tier was aborted; its repetition is put off, longer each time.
  void OnStepFailed(int64_t now_us);
  void OnStepDone();
  // True once, when the worker has been away (or failing) past the bound: its sequences are to be
  // recomputed.
  bool GiveUpIfDue(int64_t now_us);

  bool is_up() const { return is_up_; }
  bool given_up() const { return given_up_; }
  // Given up, and away so long that what only the CPU tier can hold has no hope left.
  bool IsLost(int64_t now_us) const {
    return given_up_ && now_us - away_since_us_ >= lost_limit_us_;
  }
  bool IsUsable(int64_t now_us) const { return is_up_ && !given_up_ && now_us >= retry_at_us_; }
  // When something changes by itself, later than now; 0: never.
  int64_t NextEventUs(int64_t now_us) const;

 private:
  static constexpr int64_t kFirstRetryUs = 20'000;
  static constexpr int64_t kLongestRetryUs = 1'000'000;
  static constexpr int64_t kNotAway = -1;

  int64_t away_limit_us_;
  int64_t lost_limit_us_;
  bool is_up_ = false;
  bool given_up_ = false;
  int64_t retry_us_ = kFirstRetryUs;
  int64_t retry_at_us_ = 0;
  int64_t away_since_us_ = kNotAway;
};

}  // namespace tandem::gpu_worker
