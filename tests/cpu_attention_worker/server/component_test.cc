// The real worker process, the real link and the real exchange; only the device is the test's.
#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "common/exchange/device_side.h"
#include "gpu_worker/service/cpu_attention_link.h"
#include "tests/cpu_attention_worker/server/reference_sequences.h"
#include "tests/cpu_attention_worker/server/worker_process.h"

namespace tandem::cpu_attention_worker {
namespace {

exchange::Geometry MakeGeometry(DType compute, DType kv) {
  exchange::Geometry geometry{};
  geometry.num_layers = 3;
  geometry.num_q_heads = 6;
  geometry.num_kv_heads = 2;
  geometry.head_dim = 64;
  geometry.compute_dtype = static_cast<uint32_t>(compute);
  geometry.kv_dtype = static_cast<uint32_t>(kv);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = 16;
  geometry.num_blocks = 64;
  geometry.max_table_entries = 128;
  geometry.extent_bytes = exchange::kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

// What the link reported, to wait for.
class LinkEvents {
 public:
  gpu_worker::CpuAttentionLink::Callbacks Callbacks() {
    return {[this] { Add(&ups_); }, [this] { Add(&downs_); },
            [this](int32_t blocks) {
              const std::lock_guard lock(mutex_);
              blocks_ = blocks;
              changed_.notify_all();
            }};
  }
  bool WaitUps(int count) {
    return Wait([this, count] { return ups_ >= count; });
  }
  bool WaitDowns(int count) {
    return Wait([this, count] { return downs_ >= count; });
  }
  bool WaitBlocks(int32_t count) {
    return Wait([this, count] { return blocks_ >= count; });
  }

 private:
  void Add(int* counter) {
    const std::lock_guard lock(mutex_);
    ++*counter;
    changed_.notify_all();
  }
  template <typename Predicate>
  bool Wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), predicate);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int ups_ = 0;
  int downs_ = 0;
  int32_t blocks_ = 0;
};

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
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--numa-node", "x"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--numa-node", "63"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(SocketPath("flags"), {"--cpu-attention-threads", "0"}).Wait(), 2);
  EXPECT_EQ(WorkerProcess(std::string(150, 'x')).Wait(), 2);
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
