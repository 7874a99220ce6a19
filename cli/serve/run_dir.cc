#include "cli/serve/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "common/base/socket_path.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// sun_path holds 108 bytes with its end; the longest name we put there is cpu-attention-63.sock.fd.
constexpr size_t kMaxFolderBytes = 107 - 25;
constexpr char kLinkName[] = "run";

absl::StatusOr<std::string> MakeTemporary(const char* prefix) {
  std::error_code ignored;
  fs::path folder = fs::temp_directory_path(ignored);
  std::string name = (folder.empty() ? fs::path("/tmp") : folder) / prefix;
  name += "XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, base::StrCat("cannot create a folder ", name));
  }
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDir>> RunDir::Open(const std::string& path) {
  std::unique_ptr<RunDir> dir(new RunDir);
  if (path.empty()) {
    TANDEM_ASSIGN_OR_RETURN(dir->path_, MakeTemporary("tandem-"));
    dir->temporary_ = true;
  } else {
    std::error_code error;
    dir->path_ = fs::absolute(path, error).lexically_normal().string();
    if (!error) {
      fs::create_directories(dir->path_, error);
    }
    if (error) {
      return absl::InvalidArgumentError(
          base::StrCat("--run-dir ", path, ": ", error.message(), "; allowed: a folder"));
    }
  }
  TANDEM_RETURN_IF_ERROR(dir->Lock());
  dir->RemoveTransient();
  if (dir->path_.size() > kMaxFolderBytes || !base::IsPlainSocketPath(dir->path_)) {
    TANDEM_RETURN_IF_ERROR(dir->MakeShortLink());
  }
  return dir;
}

absl::Status RunDir::Lock() {
  lock_fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_fd_ < 0) {
    return absl::ErrnoToStatus(errno, base::StrCat("--run-dir ", path_));
  }
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    close(lock_fd_);
    lock_fd_ = -1;  // what lies there is the other's
    return absl::FailedPreconditionError(
        base::StrCat("--run-dir ", path_, ": another tandem serve uses it"));
  }
  if (access(path_.c_str(), W_OK) != 0) {
    return absl::ErrnoToStatus(errno, base::StrCat("--run-dir ", path_));
  }
  return absl::OkStatus();
}

absl::Status RunDir::MakeShortLink() {
  std::string name = "/tmp/tandem-XXXXXX";  // not TMPDIR, which may be the long path's reason
  if (mkdtemp(name.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, "cannot create a short link for sockets in /tmp");
  }
  link_folder_ = name;
  std::error_code error;
  fs::create_directory_symlink(path_, fs::path(link_folder_) / kLinkName, error);
  if (error) {
    return absl::InvalidArgumentError(base::StrCat(
        "--run-dir ", path_, ": no path for sockets, and no short link: ", error.message()));
  }
  return absl::OkStatus();
}

RunDir::~RunDir() {
  std::error_code ignored;
  if (lock_fd_ >= 0) {
    RemoveTransient();
    if (temporary_ && remove_logs_) {
      fs::remove_all(path_, ignored);
    }
    close(lock_fd_);
  }
  if (!link_folder_.empty()) {
    fs::remove(fs::path(link_folder_) / kLinkName, ignored);
    fs::remove(link_folder_, ignored);
  }
}

void RunDir::RemoveTransient() const {
  std::error_code error;
  std::error_code ignored;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    const fs::path& file = it->path();
    const std::string extension = file.extension().string();
    const std::string name = file.filename().string();
    if (extension == ".sock" || extension == ".pid" || extension == ".ports" ||
        name.ends_with(".sock.fd") || name == "endpoints.json") {
      fs::remove(file, ignored);
    }
  }
}

std::string RunDir::File(const std::string& name) const { return base::StrCat(path_, "/", name); }

std::string RunDir::Socket(const std::string& name) const {
  return link_folder_.empty() ? File(name) : base::StrCat(link_folder_, "/", kLinkName, "/", name);
}

}  // namespace tandem::cli
