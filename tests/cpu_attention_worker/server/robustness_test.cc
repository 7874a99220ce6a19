// What a peer, or whoever else reaches the sockets, can do to a real worker process without
// stopping it from serving the next one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/exchange/device_side.h"
#include "common/shm/descriptor_socket.h"
#include "common/shm/residency.h"
#include "gpu_worker/service/attach_stream.h"
#include "gpu_worker/service/cpu_attention_link.h"
#include "tests/cpu_attention_worker/server/link_events.h"
#include "tests/cpu_attention_worker/server/reference_sequences.h"
#include "tests/cpu_attention_worker/server/worker_process.h"

namespace tandem::cpu_attention_worker {
namespace {

using gpu_worker::CpuAttentionLink;

// A GPU worker as far as the link goes: a region, and whatever is to be heard of the other side.
struct Peer {
  explicit Peer(const std::string& socket,
                const exchange::Geometry& geometry = MakeGeometry(DType::kFloat32, DType::kFloat32))
      : device(exchange::DeviceSide::Create(geometry).value()),
        link(CpuAttentionLink::Start({.socket_path = socket}, device.get(), events.Callbacks())) {}

  LinkEvents events;
  std::unique_ptr<exchange::DeviceSide> device;
  std::unique_ptr<CpuAttentionLink> link;
};

class RobustnessTest : public testing::Test {
 protected:
  RobustnessTest()
      : socket_(SocketPath(testing::UnitTest::GetInstance()->current_test_info()->name())),
        process_(socket_) {}

  // A fresh peer attaches and gets right answers.
  void ExpectService() {
    Peer peer(socket_);
    ASSERT_TRUE(peer.events.WaitUps(1));
    ASSERT_TRUE(peer.events.WaitBlocks(64));
    ReferenceSequences sequences(peer.device.get(), {5, 700});
    ASSERT_EQ(sequences.RunStep(1, true), absl::OkStatus());
    EXPECT_LT(sequences.error(), 5e-6);
  }
  int Descriptors() const {
    int count = 0;
    const std::string folder = "/proc/" + std::to_string(process_.pid()) + "/fd";
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
      ++count;
    }
    return count;
  }
  // Mappings of shared regions.
  int Regions() const {
    int count = 0;
    std::ifstream maps("/proc/" + std::to_string(process_.pid()) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:tandem") != std::string::npos ? 1 : 0;
    }
    return count;
  }
  void WaitDetached() const {
    while (Regions() > 0) {
      std::this_thread::yield();
    }
  }

  const std::string socket_;
  WorkerProcess process_;
};

TEST_F(RobustnessTest, AttachingAndDetachingLeavesNothingBehind) {
  ExpectService();
  WaitDetached();
  const int descriptors = Descriptors();
  for (int i = 0; i < 25; ++i) {
    Peer peer(socket_);
    ASSERT_TRUE(peer.events.WaitUps(1));
    if (i % 2 == 0) {
      ASSERT_TRUE(peer.events.WaitBlocks(64));  // else it leaves while the pool is being touched
    }
  }
  ExpectService();
  WaitDetached();
  // gRPC keeps some of its connections for a moment.
  EXPECT_LE(Descriptors(), descriptors + 8);
}

TEST_F(RobustnessTest, APoolOfAnOddSizeLiesOnHugePagesAsWell) {
  exchange::Geometry geometry = MakeGeometry(DType::kFloat32, DType::kFloat32);
  geometry.num_blocks = 61;
  Peer peer(socket_, geometry);
  ASSERT_TRUE(peer.events.WaitUps(1));
  ASSERT_TRUE(peer.events.WaitBlocks(61));
  const exchange::RegionHeader& header = peer.device->header();
  ASSERT_NE(header.pool_bytes % exchange::kHugePage, 0u) << "else it shows nothing";
  // The kernel's count is this process's: fault the pages in here, as the worker left them.
  std::byte* pool = peer.device->pool();
  const uint64_t bytes = header.region_bytes - header.pool_offset;
  ASSERT_TRUE(shm::PopulatePages(pool, bytes).ok());
  const uint64_t huge_bytes = shm::HugePageBytes(pool, bytes);
  if (huge_bytes == 0) {
    GTEST_SKIP() << "this kernel does not collapse shared memory";
  }
  EXPECT_GE(huge_bytes, bytes);
}

TEST_F(RobustnessTest, SilentConnectionsHoldNobodyUp) {
  Peer waits_for_start(socket_);
  ASSERT_TRUE(waits_for_start.events.WaitUps(1));
  waits_for_start.link.reset();
  std::vector<shm::OwnedFd> silent;
  while (silent.size() < 40) {
    absl::StatusOr<shm::OwnedFd> connection = shm::ConnectUnix(socket_ + ".fd");
    if (connection.ok()) {
      silent.push_back(*std::move(connection));
    } else {
      std::this_thread::yield();  // its queue is full until it has looked
    }
  }
  const auto started = std::chrono::steady_clock::now();
  ExpectService();
  // One after the other they would take two seconds each.
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(20));
}

TEST_F(RobustnessTest, WhatIsNoRegionIsRefused) {
  {
    Peer waits_for_start(socket_);
    ASSERT_TRUE(waits_for_start.events.WaitUps(1));
  }
  // Sends `descriptor` and asks for it as a region of `bytes`; what comes of it.
  const auto attach = [&](int descriptor, uint64_t bytes) {
    static uint64_t nonce = 100;
    absl::Status status = absl::AlreadyExistsError("");
    while (absl::IsAlreadyExists(status)) {  // the first peer takes a moment to go
      const shm::OwnedFd socket = shm::ConnectUnix(socket_ + ".fd").value();
      v1::AttachRequest request;
      request.set_nonce(++nonce);
      request.set_region_bytes(bytes);
      request.set_layout_version(exchange::kLayoutVersion);
      EXPECT_TRUE(shm::SendDescriptor(socket.get(), descriptor, nonce, 30'000'000).ok());
      gpu_worker::AttachStream stream(socket_, request);
      while (!stream.ended()) {
        EXPECT_FALSE(stream.Poll(1'000'000).has_value()) << "attached";
      }
      status = stream.status();
    }
    return status.code();
  };
  const uint64_t bytes = 4 * exchange::kHugePage;
  const shm::Region zeros = shm::Region::Create("tandem-zeros", bytes).value();
  EXPECT_EQ(attach(zeros.fd(), bytes), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(attach(zeros.fd(), bytes + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(attach(zeros.fd(), UINT64_MAX), absl::StatusCode::kInvalidArgument);
  const shm::Region tiny = shm::Region::Create("tandem-tiny", 8).value();
  EXPECT_EQ(attach(tiny.fd(), 8), absl::StatusCode::kInvalidArgument);
  const shm::OwnedFd unsealed(memfd_create("tandem-unsealed", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(attach(unsealed.get(), bytes), absl::StatusCode::kInvalidArgument);
  // More than there is to give, which a memfd does not mind. ThreadSanitizer leaves little over
  // 1 TiB of address space, so that more would sometimes fail to be mapped at all.
  constexpr int64_t kHugeBytes = int64_t{1} << 37;
  const shm::OwnedFd huge(memfd_create("tandem-huge", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(huge.get(), kHugeBytes), 0);
  ASSERT_EQ(fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(attach(huge.get(), kHugeBytes), absl::StatusCode::kInvalidArgument);
  ExpectService();
}

TEST_F(RobustnessTest, OnePeerAtATimeAndTheOtherWaits) {
  auto first = std::make_unique<Peer>(socket_);
  ASSERT_TRUE(first->events.WaitUps(1));
  ASSERT_TRUE(first->events.WaitBlocks(64));
  Peer second(socket_);
  ReferenceSequences sequences(first->device.get(), {5});
  for (uint64_t epoch = 1; epoch < 20; ++epoch) {
    ASSERT_TRUE(sequences.RunStep(epoch, false).ok());
  }
  EXPECT_FALSE(second.link->up());
  first.reset();
  ASSERT_TRUE(second.events.WaitUps(1));
}

TEST_F(RobustnessTest, AStoppedPeerCostsAStepAndNoMore) {
  {
    Peer peer(socket_);
    ASSERT_TRUE(peer.events.WaitUps(1));
    ASSERT_TRUE(peer.events.WaitBlocks(64));
    // A step that is never fed; then the peer is gone in the middle of it.
    const std::vector<int32_t> table = {0};
    const std::vector<exchange::SlotRow> rows = {{1, table}};
    ASSERT_TRUE(peer.device->BeginStep(1, rows, rows, 1.0f, 30'000'000).ok());
    peer.device->Post(0, 0);
  }
  ExpectService();
}

TEST_F(RobustnessTest, GarbageInTheRegionStopsNothing) {
  const uint64_t seed = 3;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    Peer peer(socket_);
    ASSERT_TRUE(peer.events.WaitUps(1));
    ASSERT_TRUE(peer.events.WaitBlocks(64));
    const exchange::RegionHeader& header = peer.device->header();
    std::byte* region = peer.device->region().data();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    while (std::chrono::steady_clock::now() < end) {
      // Half of it where words and descriptors are.
      const uint64_t begin = random() % 2 == 0 ? header.doorbells_offset : 0;
      const uint64_t range = begin != 0 ? 2 * exchange::kPage : header.pool_offset;
      const uint64_t offset = begin + random() % (range / 4) * 4;
      const auto value = static_cast<uint32_t>(random() % 4 == 0 ? random() : random() % 8);
      reinterpret_cast<std::atomic<uint32_t>*>(region + offset)->store(value);
      if (random() % 64 == 0) {
        peer.device->BeginStep(random() % 1000 + 1, {}, {}, 1.0f, 100).IgnoreError();
      }
    }
  }
  ExpectService();
  process_.Signal(SIGTERM);
  EXPECT_EQ(process_.Wait(), 0);
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
