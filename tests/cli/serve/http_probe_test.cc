#include "cli/serve/http_probe.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/base/clock.h"
#include "common/telemetry/metrics.h"

namespace tandem::cli {
namespace {

using Outcome = HttpProbe::Outcome;

Outcome PollToEnd(HttpProbe& probe) {
  Outcome outcome = Outcome::kPending;
  while ((outcome = probe.Poll(base::SystemClock().NowUs())) == Outcome::kPending) {
    std::this_thread::yield();
  }
  return outcome;
}

TEST(HttpProbe, TellsGoodFromBadAnswers) {
  const auto registry = telemetry::Registry::Create();
  const auto server = telemetry::MetricsServer::Start(
      "127.0.0.1", 0, registry.get(), [] { return true; }, [] { return false; });
  ASSERT_TRUE(server.ok());
  const int64_t deadline_us = base::SystemClock().NowUs() + 30'000'000;
  HttpProbe probe;
  EXPECT_FALSE(probe.running());
  probe.Start("127.0.0.1", (*server)->port(), "/health", deadline_us);
  EXPECT_TRUE(probe.running());
  EXPECT_EQ(PollToEnd(probe), Outcome::kOk);
  EXPECT_FALSE(probe.running());
  probe.Start("127.0.0.1", (*server)->port(), "/ready", deadline_us);
  EXPECT_EQ(PollToEnd(probe), Outcome::kFailed);
  probe.Start("127.0.0.1", (*server)->port(), "/health", deadline_us);
  probe.Drop();
  EXPECT_EQ(probe.Poll(0), Outcome::kFailed);
}

TEST(HttpProbe, NobodyThere) {
  HttpProbe probe;
  probe.Start("127.0.0.1", 1, "/health", base::SystemClock().NowUs() + 30'000'000);
  EXPECT_EQ(PollToEnd(probe), Outcome::kFailed);
  probe.Start("no number", 80, "/health", base::SystemClock().NowUs() + 30'000'000);
  EXPECT_EQ(PollToEnd(probe), Outcome::kFailed);
}

TEST(HttpProbe, ASilentServerIsGivenUpAtTheDeadline) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t length = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  HttpProbe probe;
  probe.Start("127.0.0.1", ntohs(address.sin_port), "/health", 1000);
  while (probe.Poll(999) == Outcome::kPending && probe.running()) {
    if (probe.Poll(1000) == Outcome::kFailed) {
      break;
    }
  }
  EXPECT_FALSE(probe.running());
  close(listener);
}

}  // namespace
}  // namespace tandem::cli
