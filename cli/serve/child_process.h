#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct SpawnOptions {
  std::vector<std::string> command;                // [0] is the program's path
  std::map<std::string, std::string> environment;  // all of it
  std::string log_path;                            // stdout and stderr are appended there
};

// Starts a child in a process group of its own (a terminal's Ctrl-C reaches us alone, and we stop
// the children in order), with stdin closed off, that the kernel kills when the calling THREAD
// ends: call it from the main thread. The error says why the program could not be run.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// Nothing while it runs; else its wait status. Reaps it.
bool TryReap(pid_t pid, int* wait_status);

// "exit status 3" or "signal 9 (Killed)".
std::string DescribeWaitStatus(int wait_status);

std::map<std::string, std::string> CurrentEnvironment();

}  // namespace tandem::cli
