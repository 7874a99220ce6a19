#include "common/base/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace tandem::base {
namespace {

class FilesTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return testing::TempDir() + "files_test." + std::to_string(getpid()) + "." + name;
  }
};

TEST_F(FilesTest, PortsComeBack) {
  const std::string path = Path("ports");
  EXPECT_EQ(ReadPortFile(path, 2).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WritePortFile(path, {9311, 0}).ok());
  const auto ports = ReadPortFile(path, 2);
  ASSERT_TRUE(ports.ok()) << ports.status();
  EXPECT_EQ(*ports, (std::vector<int>{9311, 0}));
  EXPECT_NE(access((path + ".new").c_str(), F_OK), 0) << "the file beside it stays";
  unlink(path.c_str());
}

TEST_F(FilesTest, BadPortFilesAreErrors) {
  const std::string path = Path("bad");
  for (const char* text : {"", "1", "1 2 3", "1 x", "1 70000", "1 -2"}) {
    ASSERT_TRUE(WriteFileByRename(path, text).ok());
    EXPECT_EQ(ReadPortFile(path, 2).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  unlink(path.c_str());
}

TEST_F(FilesTest, TailIsWhatWasAddedAndBounded) {
  const std::string path = Path("log");
  ASSERT_TRUE(WriteFileByRename(path, "old lines\nnew lines\n").ok());
  EXPECT_EQ(*ReadFileTail(path, 10, 100), "new lines\n");
  EXPECT_EQ(*ReadFileTail(path, 0, 6), "lines\n");
  EXPECT_EQ(*ReadFileTail(path, 500, 100), "");
  unlink(path.c_str());
  EXPECT_FALSE(ReadFileTail(path, 0, 10).ok());
  EXPECT_FALSE(WriteFileByRename("/no/such/folder/file", "x").ok());
}

}  // namespace
}  // namespace tandem::base
