// tandem-gpu-worker.
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "common/base/config.h"
#include "common/base/log.h"
#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/service/worker.h"

namespace {

using tandem::gpu_worker::Worker;

constexpr int kBadUsage = 2;
constexpr int64_t kPollUs = 50'000;
constexpr int64_t kLastCallsUs = 300'000;

// libgomp reads its variables before main. Whoever sets one decides for that one.
void RestartWithOpenMpEnvironment(char** argv) {
  bool complete = true;
  for (const auto& variable : tandem::gpu_worker::device::kOpenMpEnvironment) {
    complete = complete && std::getenv(variable.name) != nullptr;
    setenv(variable.name, variable.value, 0);
  }
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (complete || length <= 0) {
    return;
  }
  path[length] = '\0';
  execv(path, argv);
  // On failure the program runs as it is, only slower beside CPU attention.
}

int ExitStatusOf(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
                 status.code() == absl::StatusCode::kUnimplemented
             ? kBadUsage
             : 1;
}

// SIGTERM and SIGINT, blocked in every thread and taken by one of its own. Before there is anything
// to drain they end the process.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    sigprocmask(SIG_BLOCK, &set_, nullptr);
    thread_ = std::thread([this] { Loop(); });
  }
  ~StopSignals() {
    ended_.store(true);
    thread_.join();
  }

  void SetServing() { serving_.store(true); }
  int count() const { return count_.load(); }
  void WaitForFirst() { count_.wait(0); }

 private:
  void Loop() {
    const timespec timeout{.tv_sec = 0, .tv_nsec = kPollUs * 1000};
    while (!ended_.load()) {
      if (sigtimedwait(&set_, nullptr, &timeout) > 0) {
        if (!serving_.load()) {
          _exit(0);
        }
        count_.fetch_add(1);
        count_.notify_all();
      }
    }
  }

  sigset_t set_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> ended_{false};
  std::atomic<int> count_{0};
  std::thread thread_;
};

// Until all sequences have ended or the time is over. False when some had not ended. After a second
// signal they are not waited for, only their callers, who may be cancelling them just then.
bool Drain(Worker& worker, const StopSignals& signals, int64_t timeout_us) {
  const tandem::base::Clock& clock = tandem::base::SystemClock();
  const int64_t deadline_us = clock.NowUs() + timeout_us;
  worker.BeginDrain();
  while (!worker.WaitIdle(kPollUs)) {
    if (signals.count() > 1 && !worker.WaitIdle(kLastCallsUs)) {
      tandem::base::LogWarning("second signal; running requests are dropped");
      _exit(1);  // an orderly end would wait for them
    }
    if (signals.count() <= 1 && clock.NowUs() >= deadline_us) {
      tandem::base::LogWarning("drain cut short; running requests are aborted");
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  RestartWithOpenMpEnvironment(argv);
  tandem::gpu_worker::WorkerFlags flags;
  int64_t drain_timeout_s = 120;
  tandem::base::ConfigSpec spec("tandem-gpu-worker",
                                "Runs a model: tokens in, tokens out, over gRPC.");
  tandem::gpu_worker::DeclareWorkerFlags(spec, flags);
  spec.Int("drain-timeout", &drain_timeout_s, 0, 86400,
           "seconds that running requests get to finish after SIGTERM");
  if (const std::optional<int> exit_status = spec.ParseMain(argc, argv)) {
    return *exit_status;
  }
  signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more is no reason to die
  StopSignals signals;
  const absl::StatusOr<std::unique_ptr<Worker>> worker =
      Worker::Start(flags, &tandem::base::SystemClock());
  if (!worker.ok()) {
    std::fprintf(stderr, "tandem-gpu-worker: %s\n", std::string(worker.status().message()).c_str());
    return ExitStatusOf(worker.status());
  }
  signals.SetServing();
  signals.WaitForFirst();
  const bool clean = Drain(**worker, signals, drain_timeout_s * 1'000'000);
  (*worker)->Shutdown();
  tandem::base::LogInfo("stopped");
  return clean ? 0 : 1;
}
