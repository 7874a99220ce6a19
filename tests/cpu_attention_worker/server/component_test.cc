// The real worker process, the real link and the real exchange; only the device is the test's.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "common/exchange/device_side.h"
#include "common/shm/descriptor_socket.h"
#include "common/shm/region.h"
#include "gpu_worker/service/attach_stream.h"
#include "gpu_worker/service/cpu_attention_link.h"
#include "tests/cpu_attention_worker/server/link_events.h"
#include "tests/cpu_attention_worker/server/reference_sequences.h"
#include "tests/cpu_attention_worker/server/worker_process.h"

namespace tandem::cpu_attention_worker {
namespace {

class ComponentTest : public testing::Test {
 protected:
  void Start(DType compute, DType kv, const std::vector<std::string>& flags = {},
             int64_t heartbeat_timeout_us = 30'000'000) {
    flags_ = flags;
    events_ = std::make_unique<LinkEvents>();
    socket_ = SocketPath(testing::UnitTest::GetInstance()->current_test_info()->name());
    device_ = exchange::DeviceSide::Create(MakeGeometry(compute, kv)).value();
    link_ = gpu_worker::CpuAttentionLink::Start({.socket_path = socket_,
                                                 .cores_shared_with_device = true,
                                                 .heartbeat_timeout_us = heartbeat_timeout_us},
                                                device_.get(), events_->Callbacks());
    StartProcess();
    ASSERT_TRUE(events_->WaitUps(1));
    ASSERT_TRUE(events_->WaitBlocks(64));
  }
  // Until the worker's main thread has taken the first SIGTERM: it neither waits to be taken nor is
  // blocked then.
  bool WaitStopping() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) {
      std::ifstream status("/proc/" + std::to_string(process_->pid()) + "/status");
      uint64_t waiting = 0;
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("SigBlk:") || line.starts_with("ShdPnd:")) {
          waiting |= std::stoull(line.substr(7), nullptr, 16);
        }
      }
      if ((waiting & (uint64_t{1} << (SIGTERM - 1))) == 0) {
        return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  void StartProcess() { process_ = std::make_unique<WorkerProcess>(socket_, flags_); }

  std::vector<std::string> flags_;
  std::string socket_;
  std::unique_ptr<LinkEvents> events_;
  std::unique_ptr<exchange::DeviceSide> device_;
  std::unique_ptr<WorkerProcess> process_;
  std::unique_ptr<gpu_worker::CpuAttentionLink> link_;
};

TEST_F(ComponentTest, Float32OutputsEqualTheReference) {
  Start(DType::kFloat32, DType::kFloat32);
  ReferenceSequences sequences(device_.get(), {0, 1, 126, 300, 1500});
  for (uint64_t epoch = 1; epoch <= 6; ++epoch) {
    ASSERT_EQ(sequences.RunStep(epoch, epoch % 2 == 0), absl::OkStatus());
    EXPECT_LT(sequences.error(), 5e-6);
  }
}

TEST_F(ComponentTest, Bfloat16OnEachInstructionSet) {
  for (const char* isa : {"scalar", "auto"}) {
    Start(DType::kBFloat16, DType::kBFloat16, {"--isa", isa});
    ReferenceSequences sequences(device_.get(), {17, 2000});
    for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
      ASSERT_TRUE(sequences.RunStep(epoch, true).ok());
      EXPECT_LT(sequences.error(), 2e-2);
    }
    link_.reset();
    process_.reset();
  }
}

TEST_F(ComponentTest, ReducedPrecisionPools) {
  // Rounding of K and V, seen in an average of V.
  const struct {
    DType kv;
    double limit;
  } kinds[] = {{DType::kInt8, 0.03}, {DType::kFloat8E4M3, 0.1}};
  for (const auto& kind : kinds) {
    for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
      Start(compute, kind.kv);
      ReferenceSequences sequences(device_.get(), {0, 17, 127, 1500});
      for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
        ASSERT_EQ(sequences.RunStep(epoch, true), absl::OkStatus());
        EXPECT_LT(sequences.error(), kind.limit) << DTypeName(kind.kv) << DTypeName(compute);
        EXPECT_GT(sequences.error(), 1e-4) << "was it rounded at all?";
      }
      link_.reset();
      process_.reset();
    }
  }
}

TEST_F(ComponentTest, APoolOfAnotherTypeThanAllowedIsRefused) {
  Start(DType::kFloat32, DType::kBFloat16, {"--cpu-kv-dtype", "bfloat16"});
  link_.reset();
  device_ = exchange::DeviceSide::Create(MakeGeometry(DType::kFloat32, DType::kInt8)).value();
  const auto socket = shm::ConnectUnix(socket_ + ".fd");
  ASSERT_TRUE(socket.ok()) << socket.status();
  v1::AttachRequest request;
  request.set_nonce(7);
  request.set_region_bytes(device_->header().region_bytes);
  request.set_layout_version(device_->header().layout_version);
  ASSERT_TRUE(shm::SendDescriptor(socket->get(), device_->region().fd(), 7, 30'000'000).ok());
  absl::Status refused;
  // The link's attachment may take a moment to go.
  do {
    gpu_worker::AttachStream stream(socket_, request);
    while (!stream.ended()) {
      ASSERT_FALSE(stream.Poll(1'000'000).has_value()) << "attached";
    }
    refused = stream.status();
  } while (refused.code() == absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(refused.message().find("int8"), absl::string_view::npos) << refused;
}

TEST_F(ComponentTest, KvSurvivesADeathInMidStepAndTheNextProcessGoesOn) {
  Start(DType::kFloat32, DType::kFloat32);
  ReferenceSequences sequences(device_.get(), {5, 700});
  ASSERT_TRUE(sequences.RunStep(1, false).ok());
  // Stopped first, so that it dies inside the step for certain.
  process_->Signal(SIGSTOP);
  sequences.timeout_us = 200'000;
  EXPECT_EQ(sequences.RunStep(2, false).code(), absl::StatusCode::kDeadlineExceeded);
  sequences.timeout_us = 30'000'000;
  process_->Signal(SIGCONT);
  ASSERT_TRUE(device_->AbortStep(2, 30'000'000).ok());
  sequences.set_on_first_post([this] { process_->Signal(SIGKILL); });
  const absl::Status died = sequences.RunStep(3, false);
  sequences.set_on_first_post(nullptr);
  ASSERT_TRUE(events_->WaitDowns(1));
  EXPECT_FALSE(link_->up());
  EXPECT_TRUE(died.ok() || died.code() == absl::StatusCode::kUnavailable) << died;
  EXPECT_EQ(process_->Wait(), 128 + SIGKILL);
  EXPECT_EQ(device_->BeginStep(4, {}, {}, 1.0f, 1'000'000).code(), absl::StatusCode::kUnavailable);
  StartProcess();
  ASSERT_TRUE(events_->WaitUps(2));
  for (uint64_t epoch = 5; epoch < 8; ++epoch) {
    ASSERT_TRUE(sequences.RunStep(epoch, true).ok());
    EXPECT_LT(sequences.error(), 5e-6);
  }
}

TEST_F(ComponentTest, AHangingWorkerIsKilled) {
  Start(DType::kFloat32, DType::kFloat32, {}, /*heartbeat_timeout_us=*/1'500'000);
  process_->Signal(SIGSTOP);
  ASSERT_TRUE(events_->WaitDowns(1));
  EXPECT_EQ(process_->Wait(), 128 + SIGKILL);
  StartProcess();
  ASSERT_TRUE(events_->WaitUps(2));
  ReferenceSequences sequences(device_.get(), {5});
  EXPECT_TRUE(sequences.RunStep(1, false).ok());
}

TEST_F(ComponentTest, SigtermFinishesAndExitsZero) {
  Start(DType::kFloat32, DType::kFloat32);
  ReferenceSequences sequences(device_.get(), {5, 700});
  sequences.set_on_first_post([this] { process_->Signal(SIGTERM); });
  EXPECT_TRUE(sequences.RunStep(1, false).ok());
  EXPECT_LT(sequences.error(), 5e-6);
  EXPECT_EQ(process_->Wait(), 0);
  ASSERT_TRUE(events_->WaitDowns(1));
}

TEST_F(ComponentTest, ASecondSignalEndsItAtOnce) {
  for (const int second : {SIGTERM, SIGINT}) {
    Start(DType::kFloat32, DType::kFloat32);
    const std::vector<int32_t> table = {0};
    const std::vector<exchange::SlotRow> rows = {{1, table}};
    // A step that is never fed: the first signal waits for it.
    ASSERT_TRUE(device_->BeginStep(1, rows, {}, 1.0f, 30'000'000).ok());
    process_->Signal(SIGTERM);
    ASSERT_TRUE(WaitStopping());
    process_->Signal(second);
    EXPECT_EQ(process_->Wait(), 128 + second);
    ASSERT_TRUE(events_->WaitDowns(1));
    link_.reset();
  }
}

TEST_F(ComponentTest, TheWorkerOutlivesItsPeer) {
  Start(DType::kFloat32, DType::kFloat32);
  link_.reset();
  device_ = exchange::DeviceSide::Create(MakeGeometry(DType::kBFloat16, DType::kFloat32)).value();
  link_ = gpu_worker::CpuAttentionLink::Start({.socket_path = socket_}, device_.get(),
                                              events_->Callbacks());
  ASSERT_TRUE(events_->WaitUps(2));
  ReferenceSequences sequences(device_.get(), {33});
  EXPECT_TRUE(sequences.RunStep(1, false).ok());
  EXPECT_LT(sequences.error(), 2e-2);
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 0);
}

TEST(WorkerProgram, RefusesBadFlags) {
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--isa", "mmx"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--cpu-kv-dtype", "float16"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--numa-node", "x"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--numa-node", "63"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--cpu-attention-threads", "0"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(std::string(150, 'x')).Wait(), 2);
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
