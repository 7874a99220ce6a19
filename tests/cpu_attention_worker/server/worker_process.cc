#include "tests/cpu_attention_worker/server/worker_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

extern char** environ;

namespace tandem::cpu_attention_worker {

WorkerProcess::WorkerProcess(const std::string& socket, const std::vector<std::string>& flags) {
  std::vector<std::string> words = {std::string(TANDEM_BIN_DIR) + "/tandem-cpu-attention-worker",
                                    "--socket", socket, "--cpu-attention-metrics-port", "0"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  if (posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) {
    std::abort();
  }
}

WorkerProcess::~WorkerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

void WorkerProcess::Signal(int signal) const { kill(pid_, signal); }

int WorkerProcess::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string SocketPath(const std::string& name) {
  return "/tmp/tandem-test-" + std::to_string(getpid()) + "-" + name + ".sock";
}

}  // namespace tandem::cpu_attention_worker
