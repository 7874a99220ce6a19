#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/serve/child_process.h"
#include "common/base/clock.h"

namespace tandem::cli {

// What the supervisor asks about one kind of child. Calls never block.
class ChildMonitor {
 public:
  virtual ~ChildMonitor() = default;
  // Before each start: forget what the last process left.
  virtual void Reset() = 0;
  // Polled after a start until it is true.
  virtual bool Ready(int64_t now_us) = 0;
  // Polled once ready; true: it runs but makes no progress and has to be killed.
  virtual bool Hangs(int64_t now_us) = 0;
};

struct SupervisedChild {
  std::string name;
  std::function<SpawnOptions()> spawn;  // asked at each start
  std::string pid_path;
  ChildMonitor* monitor = nullptr;  // outlives the supervisor
};

// Keeps children running until SIGTERM or SIGINT, then stops them in reverse order, each after the
// one before has ended. A dead child is started again: at once the first time, then after a delay
// that doubles. One that refuses its flags (exit status 2), or ends by itself before it was ever
// ready, or is killed then again and again, ends the whole. A second signal makes all end at once.
// Single-threaded, from the main thread.
class Supervisor {
 public:
  struct Options {
    int64_t first_delay_us = 500'000;  // before the second restart in a row
    int64_t max_delay_us = 30'000'000;
    int64_t stable_us = 60'000'000;          // after which an end counts as the first again
    int64_t drain_timeout_us = 120'000'000;  // per child, from SIGTERM to SIGKILL
    int64_t hurry_timeout_us = 5'000'000;    // the same after a second signal or a failed start
    std::function<void()> on_all_ready;      // once
  };

  // `children` in starting order.
  Supervisor(std::vector<SupervisedChild> children, Options options, const base::Clock* clock);

  // The exit status for the whole: 0 after a clean stop; 1 when a child ended with an error (which
  // is how it tells that it dropped work), died or was killed while they stopped.
  int Run();

 private:
  struct State {
    SupervisedChild child;
    pid_t pid = -1;
    bool ready = false;
    bool ever_ready = false;
    bool stopping = false;  // gets no further start
    bool killed = false;
    int restarts = 0;  // in a row
    int64_t started_us = 0;
    int64_t start_at_us = 0;
    int64_t stop_deadline_us = 0;
    int64_t log_offset = 0;
  };
  enum class Phase { kRunning, kStopping, kHurrying };

  void StartDue(State& state);
  void Reap(State& state);
  void OnEnd(State& state, int wait_status);
  void CheckReady(State& state);
  void Fail(const State& state, int wait_status);
  void OnStopSignal();
  void Hurry();
  void RequestStop(State& state, int64_t timeout_us);
  bool AdvanceStop();  // true when all have ended
  void KillOverdue();

  std::vector<State> states_;
  Options options_;
  const base::Clock* clock_;
  Phase phase_ = Phase::kRunning;
  bool announced_ = false;
  int exit_status_ = 0;
};

}  // namespace tandem::cli
