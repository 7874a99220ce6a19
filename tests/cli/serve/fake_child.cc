// A stand-in for tandem-router, tandem-gpu-worker and tandem-cpu-attention-worker: takes their
// flags, writes a port file, answers /ready and /health, and appends what happens to it to
// `events` in the folder of its port file. It obeys the file `orders` there: lines "PROGRAM ORDER"
// with the orders refuse (exit 2 with a message), crash (exit 3 before being ready), unready,
// ignore-term, drop-work (exit 1 once stopped), slow-stop (stops at the second signal) and
// unhealthy.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/telemetry/metrics.h"

namespace {

std::string FlagValue(const std::vector<std::string>& args, const std::string& name) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == name && i + 1 < args.size()) {
      return args[i + 1];
    }
    if (args[i].starts_with(name + "=")) {
      return args[i].substr(name.size() + 1);
    }
  }
  return "";
}

void AppendEvent(const std::string& folder, const std::string& text) {
  const int fd =
      open((folder + "/events").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string line = text + "\n";
  if (fd < 0 || write(fd, line.data(), line.size()) < 0) {
    std::abort();
  }
  close(fd);
}

bool Ordered(const std::string& folder, const std::string& program, const std::string& order) {
  std::ifstream orders(folder + "/orders");
  for (std::string line; std::getline(orders, line);) {
    if (line == program + " " + order) {
      return true;
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argv[0];
  const std::string program = path.substr(path.rfind('/') + 1);
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::string port_file = FlagValue(args, "--port-file");
  const std::string folder = port_file.substr(0, port_file.rfind('/'));
  std::string all = "flags " + program;
  for (const std::string& arg : args) {
    all += " " + arg;
  }
  if (const char* key = std::getenv("TANDEM_API_KEY")) {
    all += " key=" + std::string(key);
  }
  if (const char* port = std::getenv("TANDEM_PORT")) {
    all += " leaked TANDEM_PORT=" + std::string(port);
  }
  AppendEvent(folder, all);
  AppendEvent(folder, "start " + program);
  if (Ordered(folder, program, "refuse")) {
    std::fprintf(stderr, "%s: --flag: bad value\n", program.c_str());
    return 2;
  }
  if (Ordered(folder, program, "crash")) {
    std::fprintf(stderr, "%s: no such model\n", program.c_str());
    return 3;
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::string metrics_port;
  for (const char* flag :
       {"--router-metrics-port", "--worker-metrics-port", "--cpu-attention-metrics-port"}) {
    metrics_port += FlagValue(args, flag);
  }
  const auto registry = tandem::telemetry::Registry::Create();
  const auto server = tandem::telemetry::MetricsServer::Start(
      "127.0.0.1", std::atoi(metrics_port.c_str()), registry.get(),
      [&] { return !Ordered(folder, program, "unhealthy"); },
      [&] { return !Ordered(folder, program, "unready"); });
  if (!server.ok()) {
    return 4;
  }
  const int port = (*server)->port();
  const std::vector<int> ports = program == "tandem-router"       ? std::vector{port, 8765}
                                 : program == "tandem-gpu-worker" ? std::vector{port, 0}
                                                                  : std::vector{port};
  if (!tandem::base::WritePortFile(port_file, ports).ok()) {
    return 5;
  }
  int number = 0;
  do {
    sigwait(&set, &number);
  } while (Ordered(folder, program, "ignore-term"));
  if (Ordered(folder, program, "slow-stop")) {
    AppendEvent(folder, "draining " + program);
    sigwait(&set, &number);
  }
  AppendEvent(folder, "stop " + program);
  return Ordered(folder, program, "drop-work") ? 1 : 0;
}
