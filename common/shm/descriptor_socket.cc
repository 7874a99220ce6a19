#include "common/shm/descriptor_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/shm/region.h"

namespace tandem::shm {
namespace {

absl::Status Errno(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

// Until `fd` has one of `events` or the deadline.
absl::Status PollUntil(int fd, short events, int64_t deadline_us) {
  while (true) {
    const int64_t left_us = deadline_us - base::SystemClock().NowUs();
    if (left_us <= 0) {
      return absl::DeadlineExceededError("no answer on the descriptor socket in time");
    }
    pollfd entry{fd, events, 0};
    const int milliseconds = static_cast<int>(std::min<int64_t>(left_us / 1000 + 1, 1'000'000));
    const int count = poll(&entry, 1, milliseconds);
    if (count > 0) {
      return absl::OkStatus();
    }
    if (count < 0 && errno != EINTR) {
      return Errno("poll of the descriptor socket");
    }
  }
}

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("unix socket path of ", path.size(),
                                                   " bytes; allowed: 1 to ",
                                                   sizeof(address.sun_path) - 1, ": ", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Nothing may wait in the kernel: a listener that is stopped lets its queue fill up, and a
// connection may be gone between poll and accept.
int NewSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// Takes every descriptor out of a received message's control part; what came beside the first is
// closed, and then none is given.
OwnedFd TakeDescriptor(msghdr* header) {
  OwnedFd only;
  int count = 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr;
       control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t bytes = control->cmsg_len - CMSG_LEN(0);
    for (size_t offset = 0; offset + sizeof(int) <= bytes; offset += sizeof(int)) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(control) + offset, sizeof(raw));
      only = OwnedFd(raw);
      ++count;
    }
  }
  return count == 1 ? std::move(only) : OwnedFd();
}

// A message of one nonce with room for one descriptor.
struct Message {
  explicit Message(uint64_t* nonce) {
    vector = {nonce, sizeof(*nonce)};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  iovec vector{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  Reset();
  fd_ = other.Release();
  return *this;
}

int OwnedFd::Release() { return std::exchange(fd_, -1); }

void OwnedFd::Reset() {
  if (fd_ >= 0) {
    close(fd_);
    fd_ = -1;
  }
}

absl::StatusOr<OwnedFd> ListenUnix(const std::string& path) {
  absl::StatusOr<sockaddr_un> address = Address(path);
  if (!address.ok()) {
    return address.status();
  }
  if (const absl::Status living = ConnectUnix(path).status();
      living.ok() || absl::IsResourceExhausted(living)) {
    return absl::AlreadyExistsError(absl::StrCat("another process listens on ", path));
  }
  unlink(path.c_str());
  OwnedFd fd(NewSocket());
  if (!fd.valid()) {
    return Errno("unix socket");
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      listen(fd.get(), 8) != 0) {
    return Errno(absl::StrCat("listening on ", path));
  }
  return fd;
}

absl::StatusOr<OwnedFd> AcceptUnix(int listen_fd, int64_t timeout_us) {
  const absl::Status ready = PollUntil(listen_fd, POLLIN, base::SystemClock().NowUs() + timeout_us);
  if (!ready.ok()) {
    return ready;
  }
  OwnedFd fd(accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    return Errno("accept on the descriptor socket");
  }
  return fd;
}

absl::StatusOr<OwnedFd> ConnectUnix(const std::string& path) {
  absl::StatusOr<sockaddr_un> address = Address(path);
  if (!address.ok()) {
    return address.status();
  }
  OwnedFd fd(NewSocket());
  if (!fd.valid()) {
    return Errno("unix socket");
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    if (errno == EAGAIN) {
      return absl::ResourceExhaustedError(
          absl::StrCat("whoever listens on ", path, " accepts nobody"));
    }
    return absl::UnavailableError(
        absl::StrCat("nobody listens on ", path, ": ", std::strerror(errno)));
  }
  return fd;
}

absl::StatusOr<PeerCredentials> PeerCredentialsOf(int socket_fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Errno("credentials of the descriptor socket's peer");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

bool PeerClosed(int socket_fd) {
  pollfd entry{socket_fd, POLLIN | POLLRDHUP, 0};
  if (poll(&entry, 1, 0) <= 0) {
    return false;
  }
  if ((entry.revents & (POLLHUP | POLLERR | POLLRDHUP | POLLNVAL)) != 0) {
    return true;
  }
  char byte = 0;
  return recv(socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

absl::Status SendDescriptor(int socket_fd, int fd, uint64_t nonce, int64_t timeout_us) {
  Message message(&nonce);
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &fd, sizeof(fd));
  const int64_t deadline_us = base::SystemClock().NowUs() + timeout_us;
  while (true) {
    const ssize_t sent = sendmsg(socket_fd, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(sizeof(nonce))) {
      return absl::OkStatus();
    }
    if (sent >= 0) {
      return absl::InternalError("the descriptor socket took a part of a message");
    }
    if (errno != EAGAIN && errno != EINTR) {
      return Errno("sending a descriptor");
    }
    if (absl::Status status = PollUntil(socket_fd, POLLOUT, deadline_us); !status.ok()) {
      return status;
    }
  }
}

absl::StatusOr<ReceivedDescriptor> ReceiveDescriptor(int socket_fd, int64_t timeout_us) {
  const absl::Status ready = PollUntil(socket_fd, POLLIN, base::SystemClock().NowUs() + timeout_us);
  if (!ready.ok()) {
    return ready;
  }
  ReceivedDescriptor received;
  Message message(&received.nonce);
  const ssize_t bytes = recvmsg(socket_fd, &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0) {
    return Errno("receiving a descriptor");
  }
  OwnedFd fd = TakeDescriptor(&message.header);
  if (bytes == 0) {
    return absl::UnavailableError("the peer closed the descriptor socket");
  }
  if (bytes != static_cast<ssize_t>(sizeof(received.nonce)) || !fd.valid() ||
      (message.header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::InvalidArgumentError("a message without exactly one nonce and one descriptor");
  }
  received.fd = fd.Release();
  return received;
}

}  // namespace tandem::shm
