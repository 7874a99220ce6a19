#include "cli/bench/cpu_worker_harness.h"

#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/topology/topology.h"

extern char** environ;

namespace tandem::cli {
namespace {

constexpr std::chrono::milliseconds kLook(100);
constexpr int kLooks = 6000;  // ten minutes: touching a large pool takes seconds per GiB

absl::StatusOr<std::string> OwnFolder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) {
    return absl::InternalError("cannot read /proc/self/exe");
  }
  const std::string program(path, static_cast<size_t>(length));
  return program.substr(0, program.rfind('/'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuWorkerHarness>> CpuWorkerHarness::Start(
    const exchange::Geometry& geometry, const std::vector<std::string>& flags, bool cores_shared) {
  std::unique_ptr<CpuWorkerHarness> harness(new CpuWorkerHarness);
  CpuWorkerHarness* raw = harness.get();
  TANDEM_ASSIGN_OR_RETURN(raw->device_, exchange::DeviceSide::Create(geometry));
  raw->device_->SetPolicy(cores_shared ? exchange::WaitPolicy::SharedCores()
                                       : exchange::WaitPolicy::OwnCores());
  raw->socket_ = absl::StrCat("/tmp/tandem-bench-", getpid(), ".sock");
  TANDEM_RETURN_IF_ERROR(raw->Spawn(flags));
  gpu_worker::CpuAttentionLink::Callbacks callbacks;
  callbacks.on_up = [raw](const std::string&) {
    const std::lock_guard lock(raw->mutex_);
    raw->up_ = true;
    raw->changed_.notify_all();
  };
  callbacks.on_down = [] {};
  callbacks.on_blocks_ready = [raw](int32_t blocks) {
    const std::lock_guard lock(raw->mutex_);
    raw->blocks_ = blocks;
    raw->changed_.notify_all();
  };
  raw->link_ = gpu_worker::CpuAttentionLink::Start(
      {.socket_path = raw->socket_, .cores_shared_with_device = cores_shared}, raw->device_.get(),
      std::move(callbacks));
  TANDEM_RETURN_IF_ERROR(raw->WaitReady());
  return harness;
}

absl::Status CpuWorkerHarness::Spawn(const std::vector<std::string>& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::string folder, OwnFolder());
  std::vector<std::string> words = {folder + "/tandem-cpu-attention-worker",
                                    "--socket",
                                    socket_,
                                    "--cpu-attention-metrics-port",
                                    "0",
                                    "--log-level",
                                    "warning"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const int error = posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ);
  if (error != 0) {
    pid_ = -1;
    return absl::ErrnoToStatus(error, absl::StrCat("starting ", words[0]));
  }
  return absl::OkStatus();
}

absl::Status CpuWorkerHarness::MoveToLastCpu() {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<topology::Topology> topology,
                          topology::Topology::Load());
  TANDEM_ASSIGN_OR_RETURN(const topology::Placement all,
                          topology::ChoosePlacement(topology->snapshot(), {}));
  return topology::PinThisThread(all.cpus.back());
}

absl::Status CpuWorkerHarness::WaitReady() {
  const auto wanted = static_cast<int32_t>(device_->header().geometry.num_blocks);
  std::unique_lock lock(mutex_);
  for (int i = 0; i < kLooks; ++i) {
    if (changed_.wait_for(lock, kLook, [&] { return up_ && blocks_ >= wanted; })) {
      return absl::OkStatus();
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::UnavailableError("the CPU attention worker ended at its start");
    }
  }
  return absl::DeadlineExceededError("the CPU attention worker did not get ready");
}

uint64_t CpuWorkerHarness::AttentionThreadSleeps() const {
  uint64_t sleeps = 0;
  std::error_code error;
  const std::string folder = absl::StrCat("/proc/", pid_, "/task");
  for (const auto& thread : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream status(thread.path() / "status");
    bool attention = false;
    for (std::string line; std::getline(status, line);) {
      attention = attention || line == "Name:\tsteps" || line == "Name:\tattend";
      unsigned long count = 0;
      if (attention && std::sscanf(line.c_str(), "voluntary_ctxt_switches: %lu", &count) == 1) {
        sleeps += count;
      }
    }
  }
  return sleeps;
}

CpuWorkerHarness::~CpuWorkerHarness() {
  link_.reset();
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
}

}  // namespace tandem::cli
