#include "common/shm/descriptor_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "common/shm/region.h"

namespace tandem::shm {
namespace {

constexpr int64_t kTimeoutUs = 10'000'000;

std::string TemporaryPath(const char* name) {
  return testing::TempDir() + "tandem-" + std::to_string(getpid()) + "-" + name;
}

TEST(DescriptorSocket, PassesADescriptorAndItsNonce) {
  const std::string path = TemporaryPath("pass");
  OwnedFd listener = ListenUnix(path).value();
  OwnedFd client = ConnectUnix(path).value();
  OwnedFd server = AcceptUnix(listener.get(), kTimeoutUs).value();
  const Region region = Region::Create("tandem-test", 4096).value();
  ASSERT_TRUE(SendDescriptor(client.get(), region.fd(), 0x1234567890abcdefull, kTimeoutUs).ok());
  const ReceivedDescriptor received = ReceiveDescriptor(server.get(), kTimeoutUs).value();
  EXPECT_EQ(received.nonce, 0x1234567890abcdefull);
  const Region mapped = Region::Map(received.fd, 4096).value();
  region.data()[1] = std::byte{9};
  EXPECT_EQ(mapped.data()[1], std::byte{9});

  EXPECT_FALSE(PeerClosed(server.get()));
  client.Reset();
  EXPECT_TRUE(PeerClosed(server.get()));
  EXPECT_EQ(ReceiveDescriptor(server.get(), kTimeoutUs).status().code(),
            absl::StatusCode::kUnavailable);
  unlink(path.c_str());
}

TEST(DescriptorSocket, RefusesAMessageWithoutADescriptor) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  OwnedFd a(pair[0]);
  OwnedFd b(pair[1]);
  ASSERT_EQ(write(a.get(), "12345678", 8), 8);
  EXPECT_EQ(ReceiveDescriptor(b.get(), kTimeoutUs).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(write(a.get(), "123", 3), 3);
  EXPECT_EQ(ReceiveDescriptor(b.get(), kTimeoutUs).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReceiveDescriptor(b.get(), 1'000).status().code(), absl::StatusCode::kDeadlineExceeded);
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Sends `count` descriptors beside one nonce.
void SendSeveral(int socket_fd, int descriptor, size_t count) {
  uint64_t nonce = 1;
  iovec vector{&nonce, sizeof(nonce)};
  std::vector<int> descriptors(count, descriptor);
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* message = CMSG_FIRSTHDR(&header);
  message->cmsg_level = SOL_SOCKET;
  message->cmsg_type = SCM_RIGHTS;
  message->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(message), descriptors.data(), count * sizeof(int));
  ASSERT_EQ(sendmsg(socket_fd, &header, 0), static_cast<ssize_t>(sizeof(nonce)));
}

TEST(DescriptorSocket, DescriptorsThatNobodyAskedForAreClosed) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const OwnedFd a(pair[0]);
  const OwnedFd b(pair[1]);
  const int before = OpenDescriptors();
  for (const size_t count : {2, 3, 8}) {
    SendSeveral(a.get(), a.get(), count);
    EXPECT_EQ(ReceiveDescriptor(b.get(), kTimeoutUs).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(OpenDescriptors(), before) << count;
  }
}

TEST(DescriptorSocket, AListenerThatHangsHoldsNobodyUp) {
  const std::string path = TemporaryPath("hang");
  const OwnedFd listener = ListenUnix(path).value();
  std::vector<OwnedFd> waiting;
  absl::Status last;
  for (int i = 0; i < 1000 && last.ok(); ++i) {  // far more than its queue takes
    absl::StatusOr<OwnedFd> connection = ConnectUnix(path);
    last = connection.status();
    if (connection.ok()) {
      waiting.push_back(*std::move(connection));
    }
  }
  EXPECT_EQ(last.code(), absl::StatusCode::kResourceExhausted);
  // It lives all the same: its place is not taken.
  EXPECT_EQ(ListenUnix(path).status().code(), absl::StatusCode::kAlreadyExists);
  unlink(path.c_str());
}

TEST(DescriptorSocket, ReplacesAStaleSocketButNotALivingOne) {
  const std::string path = TemporaryPath("stale");
  OwnedFd first = ListenUnix(path).value();
  EXPECT_EQ(ListenUnix(path).status().code(), absl::StatusCode::kAlreadyExists);
  first.Reset();  // the file stays, as after a crash
  EXPECT_EQ(ConnectUnix(path).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ListenUnix(path).ok());
  unlink(path.c_str());
  EXPECT_EQ(ListenUnix(std::string(200, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::shm
