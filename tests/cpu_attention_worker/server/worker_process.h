#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tandem::cpu_attention_worker {

// A real tandem-cpu-attention-worker as a child of the test.
class WorkerProcess {
 public:
  explicit WorkerProcess(const std::string& socket, const std::vector<std::string>& flags = {});
  ~WorkerProcess();  // kills it

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Waits for its end: the exit status, or 128 + the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
};

// A short path that no other test uses.
std::string SocketPath(const std::string& name);

}  // namespace tandem::cpu_attention_worker
