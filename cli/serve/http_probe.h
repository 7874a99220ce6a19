#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

// One HTTP GET on this host that never blocks: start it, poll it, read the outcome.
class HttpProbe {
 public:
  enum class Outcome { kPending, kOk, kFailed };  // kOk: answered with 200

  HttpProbe() = default;
  ~HttpProbe();
  HttpProbe(const HttpProbe&) = delete;
  HttpProbe& operator=(const HttpProbe&) = delete;

  // `host` is a numeric IPv4 or IPv6 address. Drops a probe still running.
  void Start(const std::string& host, int port, const std::string& path, int64_t deadline_us);
  Outcome Poll(int64_t now_us);
  bool running() const { return fd_ >= 0; }
  void Drop() { Finish(Outcome::kFailed); }

 private:
  Outcome Finish(Outcome outcome);

  int fd_ = -1;
  int64_t deadline_us_ = 0;
  std::string unsent_;
  std::string received_;
};

}  // namespace tandem::cli
