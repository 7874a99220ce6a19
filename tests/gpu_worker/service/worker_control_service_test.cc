#include "gpu_worker/service/worker_control_service.h"

#include <gtest/gtest.h>

#include <future>

#include "common/rpc/server.h"
#include "tests/fakes/fake_engine.h"

namespace tandem::gpu_worker {
namespace {

class WorkerControlServiceTest : public testing::Test {
 protected:
  WorkerControlServiceTest()
      : service_(&engine_, &base::SystemClock(), [this] { engine_.BeginDrain(); }) {
    auto server = rpc::Server::Start({.address = "127.0.0.1:0", .services = {&service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::WorkerControl::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  grpc::Status Drain(int timeout_ms, v1::DrainResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::DrainRequest request;
    request.set_timeout_ms(timeout_ms);
    return stub_->Drain(&context, request, response);
  }

  FakeEngine engine_;
  WorkerControlService service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::WorkerControl::Stub> stub_;
};

TEST_F(WorkerControlServiceTest, StateIsTheSnapshot) {
  EngineSnapshot snapshot;
  snapshot.waiting = 3;
  snapshot.gpu_blocks_free = 5;
  snapshot.gpu_blocks_used = 6;
  snapshot.gpu_blocks_cached = 7;
  snapshot.cpu_blocks_free = 8;
  snapshot.cpu_attention_up = true;
  snapshot.progress = 9;
  engine_.SetSnapshot(snapshot);
  engine_.Submit({}, [](GenerationUpdate) {});
  grpc::ClientContext context;
  v1::WorkerState state;
  ASSERT_TRUE(stub_->GetState(&context, {}, &state).ok());
  EXPECT_EQ(state.waiting(), 3);
  EXPECT_EQ(state.running(), 1);
  EXPECT_EQ(state.gpu_blocks_total(), 18);
  EXPECT_EQ(state.gpu_blocks_free(), 5);
  EXPECT_EQ(state.cpu_blocks_total(), 8);
  EXPECT_TRUE(state.cpu_attention_up());
  EXPECT_FALSE(state.draining());
  EXPECT_EQ(state.steps(), 9u);
}

TEST_F(WorkerControlServiceTest, DrainOfAnIdleWorkerReturnsAtOnce) {
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(3'600'000, &response).ok());
  EXPECT_EQ(response.sequences_left(), 0);
  EXPECT_TRUE(engine_.snapshot().draining);
}

TEST_F(WorkerControlServiceTest, DrainWaitsForRunningSequences) {
  const SubmitResult submitted = engine_.Submit({}, [](GenerationUpdate) {});
  v1::DrainResponse response;
  auto drain = std::async(std::launch::async, [&] { return Drain(3'600'000, &response); });
  while (!engine_.snapshot().draining) {
    std::this_thread::yield();
  }
  GenerationUpdate last;
  last.finish = FinishReason::kLength;
  ASSERT_TRUE(engine_.Send(submitted.sequence_id, last));
  ASSERT_TRUE(drain.get().ok());
  EXPECT_EQ(response.sequences_left(), 0);
}

TEST_F(WorkerControlServiceTest, DrainEndsAtItsDeadlineWithWhatIsLeft) {
  engine_.Submit({}, [](GenerationUpdate) {});
  engine_.Submit({}, [](GenerationUpdate) {});
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(30, &response).ok());
  EXPECT_EQ(response.sequences_left(), 2);
}

TEST_F(WorkerControlServiceTest, BadTimeoutsAreRefused) {
  v1::DrainResponse response;
  EXPECT_EQ(Drain(-1, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(engine_.snapshot().draining);
}

TEST_F(WorkerControlServiceTest, StopEndsWaitingDrains) {
  engine_.Submit({}, [](GenerationUpdate) {});
  v1::DrainResponse response;
  auto drain = std::async(std::launch::async, [&] { return Drain(3'600'000, &response); });
  while (!engine_.snapshot().draining) {
    std::this_thread::yield();
  }
  service_.Stop();
  drain.get();
}

}  // namespace
}  // namespace tandem::gpu_worker
