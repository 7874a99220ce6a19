#include "cli/serve/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

class RunDirTest : public testing::Test {
 protected:
  RunDirTest() : folder(testing::TempDir() + "run_dir." + std::to_string(getpid())) {}
  ~RunDirTest() override {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  static void Touch(const std::string& path) { std::ofstream(path) << "x"; }

  std::string folder;
};

TEST_F(RunDirTest, CleansUpWhatIsNotALog) {
  {
    const auto dir = RunDir::Open(folder);
    ASSERT_TRUE(dir.ok()) << dir.status();
    for (const char* name :
         {"a.sock", "a.sock.fd", "a.pid", "a.ports", "a.log", "endpoints.json"}) {
      Touch((*dir)->File(name));
    }
  }
  EXPECT_TRUE(fs::exists(folder + "/a.log"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(RunDirTest, WhatAKilledServeLeftIsRemovedAtStart) {
  fs::create_directories(folder);
  Touch(folder + "/old.sock");
  Touch(folder + "/endpoints.json");
  const auto dir = RunDir::Open(folder);
  ASSERT_TRUE(dir.ok());
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(RunDirTest, HasOneOwner) {
  const auto first = RunDir::Open(folder);
  ASSERT_TRUE(first.ok());
  Touch((*first)->File("a.pid"));
  EXPECT_EQ(RunDir::Open(folder).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::exists(folder + "/a.pid")) << "the loser must not clean up";
}

TEST_F(RunDirTest, TemporaryFoldersGoAfterACleanStop) {
  std::string path;
  {
    const auto dir = RunDir::Open("");
    ASSERT_TRUE(dir.ok());
    path = (*dir)->path();
    EXPECT_TRUE(fs::exists(path));
    (*dir)->RemoveLogsAtEnd();
  }
  EXPECT_FALSE(fs::exists(path));
  {
    const auto dir = RunDir::Open("");
    path = (*dir)->path();
  }
  EXPECT_TRUE(fs::exists(path)) << "after a failure the logs are wanted";
  fs::remove_all(path);
}

TEST_F(RunDirTest, SocketsInALongFolderGoThroughAShortLink) {
  const std::string deep = folder + "/" + std::string(120, 'd');
  std::string socket;
  {
    const auto dir = RunDir::Open(deep);
    ASSERT_TRUE(dir.ok()) << dir.status();
    socket = (*dir)->Socket("cpu-attention.sock.fd");
    EXPECT_LE(socket.size(), 107u);
    Touch(socket);
    EXPECT_TRUE(fs::exists(deep + "/cpu-attention.sock.fd"));
  }
  EXPECT_FALSE(fs::exists(fs::path(socket).parent_path().parent_path()));
}

TEST_F(RunDirTest, SocketsInAFolderWithUriCharactersGoThroughALink) {
  for (const char* odd : {"a,b", "a%41b", "a?b", "a#b"}) {
    const auto dir = RunDir::Open(folder + "/" + odd);
    ASSERT_TRUE(dir.ok()) << dir.status();
    const std::string socket = (*dir)->Socket("gpu-worker.sock");
    EXPECT_EQ(socket.find_first_of(",%?#"), std::string::npos) << socket;
    Touch(socket);
    EXPECT_TRUE(fs::exists(folder + "/" + odd + "/gpu-worker.sock"));
  }
}

TEST_F(RunDirTest, BadFoldersAreErrors) {
  EXPECT_THAT(std::string(RunDir::Open("/proc/no/such").status().message()),
              testing::HasSubstr("--run-dir"));
  Touch(folder);
  EXPECT_FALSE(RunDir::Open(folder).ok());
}

}  // namespace
}  // namespace tandem::cli
