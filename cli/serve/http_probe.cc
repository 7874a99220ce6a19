#include "cli/serve/http_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/strings.h"

namespace tandem::cli {
namespace {

// "HTTP/1.1 200": all that we look at.
constexpr size_t kStatusBytes = 12;

int ConnectTo(const std::string& host, int port) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    length = sizeof(*v6);
  } else {
    return -1;
  }
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return -1;
  }
  if (connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0 &&
      errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

HttpProbe::~HttpProbe() { Finish(Outcome::kFailed); }

HttpProbe::Outcome HttpProbe::Finish(Outcome outcome) {
  if (fd_ >= 0) {
    close(fd_);
    fd_ = -1;
  }
  return outcome;
}

void HttpProbe::Start(const std::string& host, int port, const std::string& path,
                      int64_t deadline_us) {
  Finish(Outcome::kFailed);
  fd_ = ConnectTo(host, port);
  deadline_us_ = deadline_us;
  received_.clear();
  unsent_ = base::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

HttpProbe::Outcome HttpProbe::Poll(int64_t now_us) {
  if (fd_ < 0 || now_us >= deadline_us_) {
    return Finish(Outcome::kFailed);
  }
  if (!unsent_.empty()) {
    pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&entry, 1, 0) == 0) {
      return Outcome::kPending;  // still connecting
    }
    const ssize_t count = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0) {
      return errno == EAGAIN || errno == EINTR ? Outcome::kPending : Finish(Outcome::kFailed);
    }
    unsent_.erase(0, static_cast<size_t>(count));
    return Outcome::kPending;
  }
  char buffer[256];
  const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR ? Outcome::kPending : Finish(Outcome::kFailed);
  }
  received_.append(buffer, static_cast<size_t>(count));
  if (received_.size() >= kStatusBytes) {
    const bool ok = received_.starts_with("HTTP/1.") && received_.substr(9, 3) == "200";
    return Finish(ok ? Outcome::kOk : Outcome::kFailed);
  }
  return count == 0 ? Finish(Outcome::kFailed) : Outcome::kPending;
}

}  // namespace tandem::cli
