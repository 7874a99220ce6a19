#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::base {
namespace {

// Owns a file descriptor.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Failed(const std::string& path, const char* what) {
  return absl::ErrnoToStatus(errno, StrCat(path, ": cannot ", what));
}

}  // namespace

absl::Status WriteFileByRename(const std::string& path, std::string_view content) {
  const std::string beside = StrCat(path, ".new");
  {
    const File file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.fd() < 0) {
      return Failed(beside, "create");
    }
    size_t written = 0;
    while (written < content.size()) {
      const ssize_t count = write(file.fd(), content.data() + written, content.size() - written);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return Failed(beside, "write");
      }
      written += static_cast<size_t>(count);
    }
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    return Failed(path, "rename into place");
  }
  return absl::OkStatus();
}

absl::Status WritePortFile(const std::string& path, const std::vector<int>& ports) {
  return WriteFileByRename(path, StrCat(absl::StrJoin(ports, " "), "\n"));
}

absl::StatusOr<std::vector<int>> ReadPortFile(const std::string& path, size_t count) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFileTail(path, 0, 256));
  std::vector<int> ports;
  for (const auto& word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    int port = 0;
    if (!absl::SimpleAtoi(word, &port) || port < 0 || port > 65535) {
      return absl::InvalidArgumentError(StrCat(path, ": '", word, "' is no port"));
    }
    ports.push_back(port);
  }
  if (ports.size() != count) {
    return absl::InvalidArgumentError(
        StrCat(path, ": ", ports.size(), " ports instead of ", count));
  }
  return ports;
}

absl::StatusOr<std::string> ReadFileTail(const std::string& path, int64_t from_offset,
                                         size_t max_bytes) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) {
    return Failed(path, "open");
  }
  const int64_t begin = std::max(from_offset, info.st_size - static_cast<int64_t>(max_bytes));
  std::string text(static_cast<size_t>(std::max<int64_t>(0, info.st_size - begin)), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = pread(file.fd(), text.data() + done, text.size() - done,
                                begin + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return Failed(path, "read");
    }
    if (count == 0) {
      break;
    }
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace tandem::base
