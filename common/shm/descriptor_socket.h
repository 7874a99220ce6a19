#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::shm {

// A file descriptor that closes itself. Movable.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset();

 private:
  int fd_ = -1;
};

// Listens on a unix stream socket at `path`; a stale socket file of a dead process is replaced.
// AlreadyExists: a living process listens there. InvalidArgument: the path is too long.
absl::StatusOr<OwnedFd> ListenUnix(const std::string& path);
// The next connection; DeadlineExceeded when none came.
absl::StatusOr<OwnedFd> AcceptUnix(int listen_fd, int64_t timeout_us);
// Unavailable: nobody listens. ResourceExhausted: so many wait to be accepted that the listener
// seems to hang.
absl::StatusOr<OwnedFd> ConnectUnix(const std::string& path);
// The process that listens (of a connecting socket) or connected (of an accepted one), as the
// kernel knows it.
struct PeerCredentials {
  int pid = 0;
  unsigned uid = 0;
};
absl::StatusOr<PeerCredentials> PeerCredentialsOf(int socket_fd);
// Whether the peer of a connected socket closed it or died; does not wait.
bool PeerClosed(int socket_fd);

}  // namespace tandem::shm
