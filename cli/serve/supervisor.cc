#include "cli/serve/supervisor.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace tandem::cli {
namespace {

constexpr int64_t kBusyTickUs = 20'000;  // while something is starting or stopping
constexpr int64_t kSteadyTickUs = 200'000;
constexpr size_t kMessageBytes = 3000;
constexpr int kFlagsRefused = 2;
constexpr int kMaxCrashesAtStart = 3;  // by a signal, before it was ever ready

// Blocks the signals we wait for while it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
      sigaddset(&set_, number);
    }
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // The next signal, 0 after `timeout_us`.
  int Wait(int64_t timeout_us) const {
    const timespec timeout{.tv_sec = timeout_us / 1'000'000,
                           .tv_nsec = timeout_us % 1'000'000 * 1000};
    return std::max(0, sigtimedwait(&set_, nullptr, &timeout));
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

// Our own signal ends a child only before it has taken over its signals, with no work begun.
bool IsCleanStop(int wait_status, bool asked) {
  if (WIFSIGNALED(wait_status)) {
    return asked && (WTERMSIG(wait_status) == SIGTERM || WTERMSIG(wait_status) == SIGINT);
  }
  return WEXITSTATUS(wait_status) == 0;
}

int64_t FileSize(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

}  // namespace

Supervisor::Supervisor(std::vector<SupervisedChild> children, Options options,
                       const base::Clock* clock)
    : options_(std::move(options)), clock_(clock) {
  for (SupervisedChild& child : children) {
    states_.push_back(State{.child = std::move(child)});
  }
}

int Supervisor::Run() {
  const BlockedSignals signals;
  while (true) {
    bool busy = phase_ != Phase::kRunning;
    for (State& state : states_) {
      Reap(state);
      StartDue(state);
      CheckReady(state);
      busy = busy || !state.ready;
    }
    if (!busy && !announced_) {
      announced_ = true;
      if (options_.on_all_ready) {
        options_.on_all_ready();
      }
    }
    if (phase_ != Phase::kRunning && AdvanceStop()) {
      return exit_status_;
    }
    const int number = signals.Wait(busy ? kBusyTickUs : kSteadyTickUs);
    if (number != 0 && number != SIGCHLD) {
      OnStopSignal();
    }
  }
}

void Supervisor::StartDue(State& state) {
  const int64_t now = clock_->NowUs();
  if (state.pid >= 0 || state.stopping || now < state.start_at_us || phase_ == Phase::kHurrying) {
    return;
  }
  state.child.monitor->Reset();
  const SpawnOptions spawn = state.child.spawn();
  state.log_offset = FileSize(spawn.log_path);
  state.started_us = now;
  const absl::StatusOr<pid_t> pid = Spawn(spawn);
  if (!pid.ok()) {
    std::fprintf(stderr, "tandem serve: %s: %s\n", state.child.name.c_str(),
                 std::string(pid.status().message()).c_str());
    exit_status_ = 1;
    Hurry();
    return;
  }
  state.pid = *pid;
  state.killed = false;
  base::LogInfo("started", {{"child", state.child.name}, {"pid", static_cast<int>(*pid)}});
  if (const absl::Status status =
          base::WriteFileByRename(state.child.pid_path, base::StrCat(*pid, "\n"));
      !status.ok()) {
    base::LogWarning("pid file not written", {{"reason", std::string(status.message())}});
  }
}

void Supervisor::Reap(State& state) {
  int wait_status = 0;
  if (state.pid >= 0 && TryReap(state.pid, &wait_status)) {
    state.pid = -1;
    state.ready = false;
    unlink(state.child.pid_path.c_str());
    OnEnd(state, wait_status);
  }
}

void Supervisor::OnEnd(State& state, int wait_status) {
  if (phase_ != Phase::kRunning && !IsCleanStop(wait_status, state.stopping)) {
    base::LogError("did not stop cleanly; work may be lost",
                   {{"child", state.child.name}, {"end", DescribeWaitStatus(wait_status)}});
    exit_status_ = exit_status_ == 0 ? 1 : exit_status_;
  }
  if (state.stopping) {
    return;
  }
  const bool refused = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kFlagsRefused;
  const bool crashed = WIFSIGNALED(wait_status) && state.restarts < kMaxCrashesAtStart;
  if (refused || !(state.ever_ready || crashed)) {
    Fail(state, wait_status);
    return;
  }
  const int64_t now = clock_->NowUs();
  if (state.ever_ready && now - state.started_us >= options_.stable_us) {
    state.restarts = 0;
  }
  int64_t delay = 0;
  if (state.restarts > 0) {
    const int doublings = std::min(state.restarts - 1, 20);
    delay = std::min(options_.first_delay_us << doublings, options_.max_delay_us);
  }
  ++state.restarts;
  state.start_at_us = now + delay;
  base::LogWarning("ended; it is started again", {{"child", state.child.name},
                                                  {"end", DescribeWaitStatus(wait_status)},
                                                  {"delay_ms", delay / 1000}});
}

void Supervisor::CheckReady(State& state) {
  if (state.pid < 0) {
    return;
  }
  const int64_t now = clock_->NowUs();
  if (!state.ready) {
    state.ready = state.child.monitor->Ready(now);
    state.ever_ready = state.ever_ready || state.ready;
  } else if (!state.stopping && !state.killed && state.child.monitor->Hangs(now)) {
    base::LogError("makes no progress; it is killed", {{"child", state.child.name}});
    state.killed = true;
    kill(state.pid, SIGKILL);
  }
}

void Supervisor::Fail(const State& state, int wait_status) {
  const absl::StatusOr<std::string> tail =
      base::ReadFileTail(state.child.spawn().log_path, state.log_offset, kMessageBytes);
  std::fprintf(stderr, "tandem serve: %s ended at start (%s):\n%s\n", state.child.name.c_str(),
               DescribeWaitStatus(wait_status).c_str(), tail.ok() ? tail->c_str() : "");
  if (exit_status_ == 0) {
    exit_status_ =
        WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != 0 ? WEXITSTATUS(wait_status) : 1;
  }
  Hurry();
}

void Supervisor::OnStopSignal() {
  if (phase_ == Phase::kRunning) {
    base::LogInfo("stopping; running requests finish first (a second signal stops at once)");
    phase_ = Phase::kStopping;
  } else {
    Hurry();
  }
}

void Supervisor::Hurry() {
  phase_ = Phase::kHurrying;
  // The router first: it tells its clients before the workers are gone.
  for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
    RequestStop(*state, options_.hurry_timeout_us);
    if (state->pid >= 0) {
      kill(state->pid, SIGINT);  // its second; another SIGTERM could merge with the first
    }
  }
}

void Supervisor::RequestStop(State& state, int64_t timeout_us) {
  const int64_t deadline = clock_->NowUs() + timeout_us;
  state.stop_deadline_us = state.stopping ? std::min(state.stop_deadline_us, deadline) : deadline;
  if (!state.stopping && state.pid >= 0) {
    kill(state.pid, SIGTERM);
  }
  state.stopping = true;
}

bool Supervisor::AdvanceStop() {
  KillOverdue();
  for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
    if (!state->stopping) {
      RequestStop(*state, options_.drain_timeout_us);
    }
    if (state->pid >= 0) {
      return false;  // the next one's turn comes when this one has ended
    }
  }
  return true;
}

void Supervisor::KillOverdue() {
  const int64_t now = clock_->NowUs();
  for (State& state : states_) {
    if (state.stopping && state.pid >= 0 && !state.killed && now >= state.stop_deadline_us) {
      base::LogError("did not stop in time; it is killed", {{"child", state.child.name}});
      state.killed = true;
      kill(state.pid, SIGKILL);
      exit_status_ = exit_status_ == 0 ? 1 : exit_status_;
    }
  }
}

}  // namespace tandem::cli
