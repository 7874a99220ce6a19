// The supervisor's decisions, with /bin/sh as children and a clock that the test moves.
#include "cli/serve/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Moves on by a step with every reading: back-off and deadlines pass without waiting.
class SteppingClock : public base::Clock {
 public:
  int64_t NowUs() const override { return now_us_ += 1000; }
  int64_t UnixUs() const override { return now_us_; }

 private:
  mutable int64_t now_us_ = 0;
};

class ScriptedMonitor : public ChildMonitor {
 public:
  void Reset() override { ++starts; }
  bool Ready(int64_t now_us) override { return on_ready(now_us); }
  bool Hangs(int64_t now_us) override { return on_hangs(now_us); }

  int starts = 0;
  std::function<bool(int64_t)> on_ready = [](int64_t) { return true; };
  std::function<bool(int64_t)> on_hangs = [](int64_t) { return false; };
};

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() : folder(testing::TempDir() + "supervisor." + std::to_string(getpid())) {
    fs::create_directories(folder);
  }
  ~SupervisorTest() override { fs::remove_all(folder); }

  SupervisedChild Child(const std::string& name, const std::string& script,
                        ScriptedMonitor* monitor) {
    return {.name = name,
            .spawn =
                [this, name, script] {
                  return SpawnOptions{.command = {"/bin/sh", "-c", script},
                                      .environment = CurrentEnvironment(),
                                      .log_path = folder + "/" + name + ".log"};
                },
            .pid_path = folder + "/" + name + ".pid",
            .monitor = monitor};
  }
  // Runs until `on_all_ready` or a monitor sends a signal.
  int Run(std::vector<SupervisedChild> children, Supervisor::Options options) {
    Supervisor supervisor(std::move(children), std::move(options), &clock);
    testing::internal::CaptureStderr();
    const int status = supervisor.Run();
    errors = testing::internal::GetCapturedStderr();
    return status;
  }
  std::string Log(const std::string& name) const {
    std::ifstream file(folder + "/" + name + ".log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void StopMe() { kill(getpid(), SIGTERM); }

  // Ends at SIGTERM; the short naps are the shell's only way to notice one.
  static constexpr char kObedient[] =
      "trap 'echo stopped; exit 0' TERM; while true; do sleep 0.02; done";

  SteppingClock clock;
  std::string folder;
  std::string errors;
};

TEST_F(SupervisorTest, StopsInReverseOrderAndCleansUp) {
  ScriptedMonitor a;
  ScriptedMonitor b;
  a.on_ready = [&](int64_t) { return Log("a") == "up\n"; };
  b.on_ready = [&](int64_t) { return Log("b") == "up\n"; };
  const std::string loop = "echo up; while true; do sleep 0.02; done";
  const std::string a_script =
      "trap 'test -e " + folder + "/b.stopped && echo after b; exit 0' TERM; " + loop;
  const std::string b_script =
      "trap 'sleep 0.1; touch " + folder + "/b.stopped; exit 0' TERM; " + loop;
  bool pid_files = false;
  const int status = Run({Child("a", a_script, &a), Child("b", b_script, &b)},
                         {.drain_timeout_us = 60'000'000'000, .on_all_ready = [&] {
                            pid_files =
                                fs::exists(folder + "/a.pid") && fs::exists(folder + "/b.pid");
                            StopMe();
                          }});
  EXPECT_EQ(status, 0) << errors;
  EXPECT_TRUE(pid_files);
  EXPECT_EQ(Log("a"), "up\nafter b\n");
  EXPECT_FALSE(fs::exists(folder + "/a.pid"));
}

TEST_F(SupervisorTest, RestartsAtOnceThenWithGrowingDelays) {
  ScriptedMonitor monitor;
  int64_t last_us = 0;
  std::vector<int64_t> gaps;
  monitor.on_ready = [&](int64_t now_us) {
    gaps.push_back(now_us - last_us);
    last_us = now_us;
    if (monitor.starts == 5) {
      StopMe();
    }
    return true;
  };
  Run({Child("a", "exit 1", &monitor)},
      {.first_delay_us = 40'000, .max_delay_us = 100'000, .stable_us = 1'000'000'000});
  ASSERT_EQ(gaps.size(), 5u);
  EXPECT_LT(gaps[1], 40'000) << "the first restart is at once";
  EXPECT_GE(gaps[2], 40'000);
  EXPECT_GE(gaps[3], 80'000);
  EXPECT_GE(gaps[4], 100'000);
  EXPECT_LT(gaps[4], 200'000) << "bounded";
}

TEST_F(SupervisorTest, AChildThatWasNeverReadyEndsTheWhole) {
  ScriptedMonitor good;
  ScriptedMonitor bad;
  bad.on_ready = [](int64_t) { return false; };
  const int status = Run(
      {Child("good", kObedient, &good), Child("bad", "echo no such model >&2; exit 3", &bad)}, {});
  EXPECT_EQ(status, 3);
  EXPECT_THAT(errors, AllOf(HasSubstr("bad"), HasSubstr("no such model")));
  EXPECT_EQ(bad.starts, 1);
  EXPECT_FALSE(fs::exists(folder + "/good.pid"));
}

TEST_F(SupervisorTest, OneKilledWhileItStartsIsStartedAgainAFewTimes) {
  ScriptedMonitor once;
  once.on_ready = [&](int64_t) { return once.starts > 1; };
  const std::string mark = folder + "/mark";
  EXPECT_EQ(
      Run({Child("a", "test -e " + mark + " || { touch " + mark + "; kill -9 $$; }; exec sleep 100",
                 &once)},
          {.on_all_ready = StopMe}),
      0)
      << errors;
  EXPECT_EQ(once.starts, 2);
  ScriptedMonitor always;
  always.on_ready = [](int64_t) { return false; };
  EXPECT_EQ(
      Run({Child("b", "kill -9 $$", &always)}, {.first_delay_us = 1000, .max_delay_us = 1000}), 1);
  EXPECT_THAT(errors, AllOf(HasSubstr("b"), HasSubstr("start")));
  EXPECT_EQ(always.starts, 4);
}

TEST_F(SupervisorTest, RefusedFlagsEndTheWholeWheneverTheyAre) {
  ScriptedMonitor monitor;
  EXPECT_EQ(Run({Child("a", "echo bad flag; exit 2", &monitor)}, {}), 2);
  EXPECT_THAT(errors, HasSubstr("bad flag"));
}

TEST_F(SupervisorTest, AProgramThatIsNotThereIsNamed) {
  ScriptedMonitor monitor;
  SupervisedChild child = Child("a", "", &monitor);
  child.spawn = [this] {
    return SpawnOptions{.command = {folder + "/none"}, .log_path = folder + "/a.log"};
  };
  EXPECT_EQ(Run({child}, {}), 1);
  EXPECT_THAT(errors, HasSubstr(folder + "/none"));
}

TEST_F(SupervisorTest, OneThatHangsIsKilledAndStartedAgain) {
  ScriptedMonitor monitor;
  monitor.on_hangs = [&](int64_t) {
    if (monitor.starts == 2) {
      StopMe();
      return false;
    }
    return true;
  };
  const int status = Run({Child("a", kObedient, &monitor)}, {});
  EXPECT_EQ(status, 0) << errors;
  EXPECT_EQ(monitor.starts, 2);
}

TEST_F(SupervisorTest, OneThatDoesNotStopIsKilledAndThatIsNotClean) {
  ScriptedMonitor monitor;
  const std::string deaf = "trap '' TERM; echo up; while true; do sleep 0.02; done";
  monitor.on_ready = [&](int64_t) { return Log("a") == "up\n"; };
  EXPECT_EQ(
      Run({Child("a", deaf, &monitor)}, {.drain_timeout_us = 100'000, .on_all_ready = StopMe}), 1);
  EXPECT_THAT(errors, HasSubstr("killed"));
}

TEST_F(SupervisorTest, ASecondSignalCutsTheDrainShort) {
  ScriptedMonitor monitor;
  const std::string slow =
      "trap 'while true; do sleep 0.02; done' TERM; trap 'echo second' INT; echo up; "
      "while true; do sleep 0.02; done";
  monitor.on_ready = [&](int64_t) { return Log("a") == "up\n"; };
  EXPECT_EQ(Run({Child("a", slow, &monitor)}, {.drain_timeout_us = 1'000'000'000'000,
                                               .hurry_timeout_us = 1'000'000,
                                               .on_all_ready =
                                                   [] {
                                                     StopMe();
                                                     kill(getpid(), SIGINT);
                                                   }}),
            1);
  EXPECT_THAT(Log("a"), HasSubstr("second")) << "it can end by itself before it is killed";
}

TEST_F(SupervisorTest, TheDeadAreRestartedWhileAnotherDrains) {
  ScriptedMonitor a;
  ScriptedMonitor b;
  const std::string once = "test -e " + folder + "/again || { touch " + folder +
                           "/again; echo first; while test ! -e " + folder +
                           "/go; do sleep 0.02; done; exit 1; }; echo second; " + kObedient;
  const std::string b_script = "trap 'touch " + folder + "/go; while ! grep -q second " + folder +
                               "/a.log; do sleep 0.02; done; exit 0' TERM; echo up; "
                               "while true; do sleep 0.02; done";
  b.on_ready = [&](int64_t) { return Log("b") == "up\n"; };
  EXPECT_EQ(Run({Child("a", once, &a), Child("b", b_script, &b)},
                {.drain_timeout_us = 1'000'000'000'000, .on_all_ready = StopMe}),
            1)
      << "a death while draining is not clean";
  EXPECT_EQ(a.starts, 2);
}

}  // namespace
}  // namespace tandem::cli
