#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "router/frontend/router_server.h"
#include "router/frontend/text_flags.h"

namespace tandem::router {
namespace {

struct Flags {
  RouterOptions router;
  int64_t threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 4);
  int64_t metrics_port = 9310;
  int64_t max_connections = 8192;
  int64_t max_pending_resumes = 1024;
  std::optional<uint64_t> max_body_size = 16u << 20;
  std::optional<uint64_t> max_header_size = 16u << 10;
  double request_timeout_s = 3600;
  double resume_timeout_s = 30;
  double drain_timeout_s = 120;
  double drain_delay_s = 0.3;
  double idle_timeout_s = 75;
  double header_timeout_s = 10;
  double body_timeout_s = 60;
  double write_timeout_s = 30;
  double keep_alive_s = 15;
  TextFlags text;
  std::string port_file;
  std::vector<std::string> allowed_origins;
};

int64_t Microseconds(double seconds) { return static_cast<int64_t>(seconds * 1e6); }

void Declare(base::ConfigSpec* spec, Flags* flags) {
  RouterOptions& router = flags->router;
  spec->String("listen", &router.listen, "host:port (port 0: a free one) or unix:PATH");
  spec->String("grpc-listen", &router.grpc_listen,
               "address of tandem.v1.Inference for clients, host:port or unix:PATH (default: not "
               "served)");
  spec->Strings("worker", &router.workers, "a worker's address, host:port or unix:PATH");
  spec->String("api-key", &router.api_key, "key that every path but /health and /ready asks for");
  spec->Strings("allowed-origins", &flags->allowed_origins,
                "origins of the web pages whose scripts may use the server (default: *, all)");
  DeclareTextFlags(*spec, flags->text);
  spec->String("metrics-host", &router.metrics_host,
               "address that the metrics port binds (default: the host of --listen, 127.0.0.1 "
               "beside a unix socket)");
  spec->Int("router-metrics-port", &flags->metrics_port, 0, 65535,
            "port of /metrics, /health and /ready; 0: a free one");
  spec->String("port-file", &flags->port_file,
               "file that gets one line, METRICS_PORT HTTP_PORT, once requests are served");
  spec->Int("router-threads", &flags->threads, 1, 64, "threads that serve connections");
  spec->Int("max-connections", &flags->max_connections, 1, 1'000'000, "connections at a time");
  spec->Int("max-concurrent-requests", &router.max_concurrent_requests, 1, 1'000'000,
            "running requests; more get 429");
  spec->Int("max-pending-resumes", &flags->max_pending_resumes, 0, 1'000'000,
            "sequences that wait for a lost worker");
  spec->Bytes("max-body-size", &flags->max_body_size, "largest body of a request");
  spec->Bytes("max-header-size", &flags->max_header_size, "largest headers of a request");
  spec->Double("request-timeout", &flags->request_timeout_s, 0, 1e6,
               "seconds that a request may take; 0: no limit");
  spec->Double("resume-timeout", &flags->resume_timeout_s, 0, 1e6,
               "seconds that a sequence waits for a worker after its own was lost");
  spec->Double("drain-timeout", &flags->drain_timeout_s, 0, 1e6,
               "seconds that running requests get after SIGTERM");
  spec->Double("drain-delay", &flags->drain_delay_s, 0, 1e6,
               "seconds after SIGTERM that connections are still accepted, with 503");
  spec->Double("idle-timeout", &flags->idle_timeout_s, 0.01, 1e6, "seconds between requests");
  spec->Double("header-timeout", &flags->header_timeout_s, 0.01, 1e6,
               "seconds for a request's headers");
  spec->Double("body-timeout", &flags->body_timeout_s, 0.01, 1e6, "seconds for a request's body");
  spec->Double("write-timeout", &flags->write_timeout_s, 0.01, 1e6,
               "seconds without progress until a slow reader is dropped");
  spec->Double("keep-alive", &flags->keep_alive_s, 0, 1e6,
               "seconds of silence in a stream after which a comment is sent; 0: never");
}

std::string MetricsHost(const RouterOptions& options) {
  if (!options.metrics_host.empty()) {
    return options.metrics_host;
  }
  if (options.listen.starts_with("unix:")) {
    return "127.0.0.1";
  }
  std::string host = options.listen.substr(0, options.listen.rfind(':'));
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

absl::StatusOr<RouterOptions> OptionsOf(const Flags& flags) {
  RouterOptions options = flags.router;
  TANDEM_ASSIGN_OR_RETURN(options.text,
                          ReadTextFlags(flags.text, base::SystemClock().UnixUs() / 1'000'000));
  if (!flags.allowed_origins.empty()) {
    options.allowed_origins = flags.allowed_origins;
  }
  options.keep_alive_us = Microseconds(flags.keep_alive_s);
  options.num_threads = static_cast<int>(flags.threads);
  options.metrics_port = static_cast<int>(flags.metrics_port);
  options.metrics_host = MetricsHost(options);
  options.max_pending_resumes = static_cast<int>(flags.max_pending_resumes);
  options.request_timeout_us = Microseconds(flags.request_timeout_s);
  options.resume_timeout_us = Microseconds(flags.resume_timeout_s);
  options.http.max_connections = static_cast<int>(flags.max_connections);
  options.http.max_body_bytes = flags.max_body_size.value_or(options.http.max_body_bytes);
  options.http.max_header_bytes = flags.max_header_size.value_or(options.http.max_header_bytes);
  options.http.idle_timeout_us = Microseconds(flags.idle_timeout_s);
  options.http.header_timeout_us = Microseconds(flags.header_timeout_s);
  options.http.body_timeout_us = Microseconds(flags.body_timeout_s);
  options.http.write_timeout_us = Microseconds(flags.write_timeout_s);
  return options;
}

// Two descriptors per stream are soon more than the default of 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// True when a signal came within the time.
bool WaitForSignal(int signal_fd, int timeout_ms) {
  pollfd poll_fd{signal_fd, POLLIN, 0};
  if (poll(&poll_fd, 1, timeout_ms) <= 0) {
    return false;
  }
  signalfd_siginfo info{};
  return read(signal_fd, &info, sizeof info) == sizeof info;
}

// False when requests had to be cut off.
bool Drain(RouterServer* server, const Flags& flags, int signal_fd) {
  constexpr int kPollMs = 20;
  const base::Clock& clock = base::SystemClock();
  const int64_t start_us = clock.NowUs();
  base::LogInfo("draining", {{"running", server->running()}});
  server->BeginDrain();
  while (true) {
    const int64_t passed_us = clock.NowUs() - start_us;
    const bool idle = server->running() == 0;
    if (idle && passed_us >= Microseconds(flags.drain_delay_s)) {
      break;
    }
    if (!idle && passed_us >= Microseconds(flags.drain_timeout_s)) {
      base::LogWarning("the drain's time is over");
      break;
    }
    if (WaitForSignal(signal_fd, kPollMs)) {
      base::LogWarning("second signal");
      break;
    }
  }
  const int64_t dropped = server->CutOff();
  if (dropped > 0) {
    base::LogError("requests were cut off", {{"count", dropped}});
  }
  return dropped == 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  base::ConfigSpec spec("tandem-router", "OpenAI-compatible HTTP server in front of GPU workers");
  Declare(&spec, &flags);
  if (const std::optional<int> exit_status = spec.ParseMain(argc, argv)) {
    return *exit_status;
  }
  if (flags.router.workers.empty()) {
    std::fprintf(stderr,
                 "tandem-router: --worker is needed at least once (host:port or "
                 "unix:PATH)\n");
    return 2;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  const absl::StatusOr<RouterOptions> options = OptionsOf(flags);
  if (!options.ok()) {
    std::fprintf(stderr, "tandem-router: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  auto server = RouterServer::Start(*options, &base::SystemClock());
  if (!server.ok()) {
    std::fprintf(stderr, "tandem-router: %s\n", std::string(server.status().message()).c_str());
    return server.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  if (!flags.port_file.empty()) {
    const absl::Status written =
        base::WritePortFile(flags.port_file, {(*server)->metrics_port(), (*server)->port()});
    if (!written.ok()) {
      std::fprintf(stderr, "tandem-router: --port-file: %s\n",
                   std::string(written.message()).c_str());
      return 1;
    }
  }
  base::LogInfo("listening", {{"address", flags.router.listen},
                              {"port", (*server)->port()},
                              {"metrics_port", (*server)->metrics_port()},
                              {"grpc_port", (*server)->grpc_port()}});
  while (!WaitForSignal(signal_fd, -1)) {
  }
  const bool clean = Drain(server->get(), flags, signal_fd);
  (*server)->Stop();
  close(signal_fd);
  base::LogInfo("stopped");
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace tandem::router

int main(int argc, char** argv) { return tandem::router::Main(argc, argv); }
