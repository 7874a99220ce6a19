#include "cli/serve/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace tandem::cli {
namespace {

constexpr int kExecFailed = 127;

// What the child needs after fork, made before: only async-signal-safe calls may follow a fork.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> envp;
  int null_fd;
  int log_fd;
  int report_fd;  // takes errno when exec fails, closes when it works
  pid_t parent;
};

[[noreturn]] void RunChild(const Prepared& prepared) {
  setpgid(0, 0);
  // Held by the parent's thread: when that ends, the kernel kills us. It may have ended already.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != prepared.parent) {
    _exit(kExecFailed);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    signal(number, SIG_DFL);
  }
  if (dup2(prepared.null_fd, STDIN_FILENO) >= 0 && dup2(prepared.log_fd, STDOUT_FILENO) >= 0 &&
      dup2(prepared.log_fd, STDERR_FILENO) >= 0) {
    execve(prepared.argv[0], prepared.argv.data(), prepared.envp.data());
  }
  const int error = errno;
  if (write(prepared.report_fd, &error, sizeof(error)) < 0) {
    _exit(kExecFailed);
  }
  _exit(kExecFailed);
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status ReadExecError(int fd, const std::string& program) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(fd, &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof(error))) {
    return absl::ErrnoToStatus(error, base::StrCat("cannot run ", program));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  std::vector<std::string> arguments = options.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : options.environment) {
    variables.push_back(base::StrCat(name, "=", value));
  }
  int pipe_fds[2] = {-1, -1};
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int log_fd =
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  absl::StatusOr<pid_t> result = absl::InternalError("not started");
  if (null_fd < 0 || log_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) {
    result = absl::ErrnoToStatus(errno, base::StrCat("cannot open ", options.log_path));
  } else {
    const Prepared prepared{.argv = Pointers(arguments),
                            .envp = Pointers(variables),
                            .null_fd = null_fd,
                            .log_fd = log_fd,
                            .report_fd = pipe_fds[1],
                            .parent = getpid()};
    const pid_t pid = fork();
    if (pid == 0) {
      RunChild(prepared);
    }
    close(pipe_fds[1]);
    pipe_fds[1] = -1;
    if (pid < 0) {
      result = absl::ErrnoToStatus(errno, "fork");
    } else if (const absl::Status status = ReadExecError(pipe_fds[0], arguments[0]); !status.ok()) {
      waitpid(pid, nullptr, 0);
      result = status;
    } else {
      result = pid;
    }
  }
  for (const int fd : {null_fd, log_fd, pipe_fds[0], pipe_fds[1]}) {
    if (fd >= 0) {
      close(fd);
    }
  }
  return result;
}

bool TryReap(pid_t pid, int* wait_status) { return waitpid(pid, wait_status, WNOHANG) == pid; }

std::string DescribeWaitStatus(int wait_status) {
  if (WIFEXITED(wait_status)) {
    return base::StrCat("exit status ", WEXITSTATUS(wait_status));
  }
  const int number = WTERMSIG(wait_status);
  return base::StrCat("signal ", number, " (", strsignal(number), ")");
}

std::map<std::string, std::string> CurrentEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (const char* equals = std::strchr(*entry, '=')) {
      variables.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
    }
  }
  return variables;
}

}  // namespace tandem::cli
