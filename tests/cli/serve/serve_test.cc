// The real `tandem serve` over fake programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/serve/child_process.h"
#include "common/base/clock.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPatienceUs = 60'000'000;
constexpr int kPollMs = 2;

class ServeTest : public testing::Test {
 protected:
  ServeTest() : folder(testing::TempDir() + "serve." + std::to_string(getpid())) {
    fs::create_directories(folder + "/bin");
    fs::create_directories(folder + "/run");
    for (const char* program :
         {"tandem-router", "tandem-gpu-worker", "tandem-cpu-attention-worker"}) {
      fs::create_symlink(TANDEM_FAKE_CHILD, folder + "/bin/" + program);
    }
    std::ofstream(folder + "/model.gguf") << "x";
  }
  ~ServeTest() override {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    fs::remove_all(folder);
  }

  void Order(const std::string& text) { std::ofstream(folder + "/run/orders") << text << "\n"; }

  void Start(const std::vector<std::string>& extra = {},
             const std::map<std::string, std::string>& variables = {}) {
    SpawnOptions options{
        .command = {TANDEM_PROGRAM, "serve", folder + "/model.gguf", "--run-dir", folder + "/run",
                    "--program-dir", folder + "/bin", "--port", "0", "--router-metrics-port", "0",
                    "--worker-metrics-port", "0", "--cpu-attention-metrics-port", "0"},
        .environment = CurrentEnvironment(),
        .log_path = folder + "/serve.out"};
    options.command.insert(options.command.end(), extra.begin(), extra.end());
    for (const auto& [name, value] : variables) {
      options.environment[name] = value;
    }
    const auto started = Spawn(options);
    ASSERT_TRUE(started.ok()) << started.status();
    pid = *started;
  }

  template <typename Condition>
  bool Eventually(Condition condition) {
    const int64_t deadline_us = base::SystemClock().NowUs() + kPatienceUs;
    while (!condition()) {
      if (base::SystemClock().NowUs() > deadline_us) {
        return false;
      }
      poll(nullptr, 0, kPollMs);
    }
    return true;
  }
  bool WaitReady() {
    return Eventually([&] { return fs::exists(folder + "/run/endpoints.json"); });
  }
  int WaitExit() {
    int status = 0;
    if (!Eventually([&] { return TryReap(pid, &status); })) {
      return -1;
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string Text(const std::string& name) const {
    std::ifstream file(folder + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Events of one kind, in order, without "tandem-".
  std::vector<std::string> Events(const std::string& kind) const {
    std::vector<std::string> found;
    std::ifstream file(folder + "/run/events");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(kind + " ")) {
        found.push_back(line.substr(kind.size() + 8));
      }
    }
    return found;
  }
  pid_t PidOf(const std::string& name) const {
    pid_t child = 0;
    std::ifstream(folder + "/run/" + name + ".pid") >> child;
    return child;
  }

  std::string folder;
  pid_t pid = -1;
};

TEST_F(ServeTest, StartsServesAndStopsInOrder) {
  Start({"--dtype", "float32", "--cpu-kv-size=512MiB", "--cpu-attention-threads", "2", "--api-key",
         "s3cret", "--served-model-name", "a", "--served-model-name", "b"},
        {{"TANDEM_PORT", "1"}});
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  const auto endpoints = nlohmann::json::parse(Text("run/endpoints.json"));
  EXPECT_EQ(endpoints["http"], "http://127.0.0.1:8765");
  for (const char* name : {"router", "gpu_worker", "cpu_attention_worker"}) {
    EXPECT_THAT(endpoints["metrics"][name].get<std::string>(),
                testing::MatchesRegex("http://127.0.0.1:[0-9]+/metrics"));
  }
  EXPECT_TRUE(Eventually([&] { return Text("serve.out").find(":8765") != std::string::npos; }));
  const std::vector<pid_t> children = {PidOf("router"), PidOf("gpu-worker"),
                                       PidOf("cpu-attention-worker")};
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 0) << Text("serve.out");
  EXPECT_THAT(Events("stop"), ElementsAre("router", "gpu-worker", "cpu-attention-worker"));
  for (const pid_t child : children) {
    EXPECT_NE(kill(child, 0), 0) << "a child outlives serve";
  }
  for (const char* name : {"router.pid", "endpoints.json", "router.ports"}) {
    EXPECT_FALSE(fs::exists(folder + "/run/" + name)) << name;
  }

  const std::string flags = Text("run/events");
  EXPECT_THAT(flags, HasSubstr("--dtype=float32"));
  EXPECT_THAT(flags, HasSubstr("--cpu-kv-size=512MiB"));
  EXPECT_THAT(flags, HasSubstr("--served-model-name=a --served-model-name=b"));
  EXPECT_THAT(flags, HasSubstr("--cpu-attention-threads=2"));
  EXPECT_THAT(flags, HasSubstr("key=s3cret"));
  EXPECT_THAT(flags, Not(HasSubstr("--api-key"))) << "command lines are public";
  EXPECT_THAT(flags, Not(HasSubstr("leaked"))) << "flags of serve do not reach children twice";
}

TEST_F(ServeTest, OneCpuAttentionWorkerPerNode) {
  Start({"--numa-node", "1,0"});
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  const auto endpoints = nlohmann::json::parse(Text("run/endpoints.json"));
  EXPECT_TRUE(endpoints["metrics"].contains("cpu_attention_worker"));
  EXPECT_TRUE(endpoints["metrics"].contains("cpu_attention_worker_1"));
  EXPECT_NE(PidOf("cpu-attention-worker"), PidOf("cpu-attention-worker-1"));
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 0) << Text("serve.out");
  const std::string flags = Text("run/events");
  EXPECT_THAT(flags, HasSubstr("cpu-attention.sock --numa-node 1"));
  EXPECT_THAT(flags, HasSubstr("cpu-attention-1.sock --numa-node 0"));
  EXPECT_THAT(flags, testing::ContainsRegex("--cpu-attention-socket [^ ]*cpu-attention.sock "
                                            "--cpu-attention-socket [^ ]*cpu-attention-1.sock"));
}

TEST_F(ServeTest, RefusesNodesThatMakeNoSense) {
  for (const char* nodes : {"0,0", "0,", "auto,1", "x", "-1", "99999"}) {
    Start({std::string("--numa-node=") + nodes});
    EXPECT_EQ(WaitExit(), 2) << nodes;
    EXPECT_THAT(Text("serve.out"), HasSubstr("--numa-node")) << nodes;
  }
}

TEST_F(ServeTest, ARestartedChildKeepsItsPortAndTheOthersStay) {
  Start();
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  const auto endpoints = nlohmann::json::parse(Text("run/endpoints.json"));
  const pid_t before = PidOf("gpu-worker");
  const pid_t router = PidOf("router");
  ASSERT_EQ(kill(before, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return PidOf("gpu-worker") > 0 && PidOf("gpu-worker") != before; }));
  const std::string url = endpoints["metrics"]["gpu_worker"];
  const std::string port = url.substr(17, url.find('/', 17) - 17);
  EXPECT_TRUE(Eventually([&] { return Events("flags").size() == 4; }));
  EXPECT_THAT(Events("flags").back(), HasSubstr("--worker-metrics-port=" + port));
  EXPECT_EQ(PidOf("router"), router);
  kill(pid, SIGINT);
  EXPECT_EQ(WaitExit(), 0) << Text("serve.out");
}

TEST_F(ServeTest, ChildrenDieWithAKilledServe) {
  Start();
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  const std::vector<pid_t> children = {PidOf("router"), PidOf("gpu-worker"),
                                       PidOf("cpu-attention-worker")};
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // the orphans come to us, so that we see them end
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pid = -1;
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_TRUE(Eventually([&] { return TryReap(child, &status); }));
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(ServeTest, AChildsErrorAtStartIsServesError) {
  Order("tandem-gpu-worker crash");
  Start();
  EXPECT_EQ(WaitExit(), 3);
  EXPECT_THAT(Text("serve.out"), HasSubstr("tandem-gpu-worker: no such model"));
  EXPECT_FALSE(fs::exists(folder + "/run/endpoints.json"));
}

TEST_F(ServeTest, RefusedFlagsAreServesError) {
  Order("tandem-cpu-attention-worker refuse");
  Start();
  EXPECT_EQ(WaitExit(), 2);
  EXPECT_THAT(Text("serve.out"), HasSubstr("--flag: bad value"));
}

TEST_F(ServeTest, IsReadyOnlyWhenTheRouterIs) {
  Order("tandem-router unready");
  Start();
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder + "/run/router.ports"); }));
  EXPECT_FALSE(fs::exists(folder + "/run/endpoints.json"));
  Order("");
  EXPECT_TRUE(WaitReady());
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 0);
}

TEST_F(ServeTest, CanBeStoppedBeforeItIsReady) {
  Order("tandem-router unready");
  Start();
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder + "/run/router.ports"); }));
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 0) << Text("serve.out");
}

TEST_F(ServeTest, DroppedWorkIsNotACleanStop) {
  Order("tandem-router drop-work");
  Start();
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 1);
  EXPECT_THAT(Text("serve.out"), HasSubstr("did not stop cleanly"));
  EXPECT_THAT(Events("stop"), ElementsAre("router", "gpu-worker", "cpu-attention-worker"));
}

TEST_F(ServeTest, ASecondSignalReachesEveryChildTwice) {
  Order("tandem-router slow-stop\ntandem-gpu-worker slow-stop");
  Start();
  ASSERT_TRUE(WaitReady()) << Text("serve.out");
  kill(pid, SIGTERM);
  ASSERT_TRUE(Eventually([&] { return Events("draining").size() == 1; }));
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitExit(), 0) << Text("serve.out");
  EXPECT_EQ(Events("stop").size(), 3u);
}

TEST_F(ServeTest, BadUseIsRefusedWithAMessage) {
  const std::vector<std::vector<std::string>> uses = {{"--port", "70000"},
                                                      {"--no-such-flag", "1"},
                                                      {"--offload", "sometimes"},
                                                      {"second-model"},
                                                      {"--cpu-kv-size", "much"}};
  for (const auto& use : uses) {
    Start(use);
    EXPECT_EQ(WaitExit(), 2);
    EXPECT_THAT(Text("serve.out"), HasSubstr("tandem serve: "));
    fs::remove(folder + "/serve.out");
  }
  EXPECT_FALSE(fs::exists(folder + "/run/events")) << "no child was started";
}

}  // namespace
}  // namespace tandem::cli
