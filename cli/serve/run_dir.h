#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

// The folder of one `tandem serve`, held by a lock while it runs. Its end removes sockets, pid
// files and endpoints.json; logs stay, except in a temporary folder after a clean stop.
class RunDir {
 public:
  // An empty `path` makes a temporary folder. FailedPrecondition: another serve uses it.
  static absl::StatusOr<std::unique_ptr<RunDir>> Open(const std::string& path);
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const;
  // Path for a unix socket. Where the folder's own path is too long for a socket address it leads
  // through a short symbolic link.
  std::string Socket(const std::string& name) const;
  void RemoveLogsAtEnd() { remove_logs_ = true; }

 private:
  RunDir() = default;
  absl::Status Lock();
  absl::Status MakeShortLink();
  void RemoveTransient() const;

  std::string path_;
  std::string link_folder_;  // holds the short link, or empty
  int lock_fd_ = -1;
  bool temporary_ = false;
  bool remove_logs_ = false;
};

}  // namespace tandem::cli
