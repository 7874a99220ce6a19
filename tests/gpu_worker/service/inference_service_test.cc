// The protocol over a real gRPC server, with a fake engine behind it.
#include "gpu_worker/service/inference_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/sha256.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gpu_worker/service/generate_call.h"
#include "tests/fakes/fake_engine.h"

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

class InferenceServiceTest : public testing::Test {
 protected:
  InferenceServiceTest() : service_(Model(), &engine_, &base::SystemClock()) {
    auto server = rpc::Server::Start({.address = "127.0.0.1:0", .services = {&service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  static ServedModel Model() {
    ServedModel model;
    model.description.set_model_id("m");
    model.description.set_vocab_size(100);
    model.tokenizer.assign(3'000'000, 't');
    model.tokenizer += "end";
    return model;
  }
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.set_request_id("r-1");
    request.add_prompt_token_ids(5);
    request.set_max_tokens(10);
    return request;
  }
  static GenerationUpdate Token(int32_t token, FinishReason finish = FinishReason::kNone) {
    GenerationUpdate update;
    update.tokens = {token};
    update.finish = finish;
    return update;
  }
  std::unique_ptr<grpc::ClientContext> Context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return context;
  }
  absl::Status Refusal(const v1::GenerateRequest& request) {
    const auto context = Context();
    const auto stream = stub_->Generate(context.get(), request);
    v1::GenerateResponse response;
    EXPECT_FALSE(stream->Read(&response)) << "a refusal sends no message";
    return rpc::FromGrpcStatus(stream->Finish());
  }

  FakeEngine engine_;
  InferenceService service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(InferenceServiceTest, StreamsUntilTheEnd) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  EXPECT_EQ(engine_.request(0).request_id, "r-1");

  ASSERT_TRUE(engine_.Send(1, Token(7)));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.tokens_size(), 1);
  EXPECT_EQ(response.tokens(0).token_id(), 7);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);

  GenerationUpdate last = Token(8, FinishReason::kStop);
  last.stop_token = 8;
  last.prompt_tokens = 1;
  last.cached_tokens = 0;
  last.completion_tokens = 2;
  ASSERT_TRUE(engine_.Send(1, last));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tokens(0).token_id(), 8);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.stop_token_id(), 8);
  EXPECT_EQ(response.usage().completion_tokens(), 2);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(engine_.cancel_count(), 0u) << "a sequence that ended by itself is not cancelled";
}

TEST_F(InferenceServiceTest, NothingIsLostBetweenAFastEngineAndASlowReader) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  constexpr int kTokens = 3000;
  for (int i = 0; i < kTokens; ++i) {
    ASSERT_TRUE(engine_.Send(
        1, Token(i % 100, i + 1 == kTokens ? FinishReason::kLength : FinishReason::kNone)));
  }
  int read = 0;
  v1::GenerateResponse response;
  bool finished = false;
  while (stream->Read(&response)) {
    EXPECT_FALSE(finished);
    for (const auto& token : response.tokens()) {
      EXPECT_EQ(token.token_id(), read++ % 100);
    }
    finished = response.finish_reason() == v1::FINISH_REASON_LENGTH;
  }
  EXPECT_EQ(read, kTokens);
  EXPECT_TRUE(finished);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferenceServiceTest, CancellingTheCallCancelsTheSequence) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  ASSERT_TRUE(engine_.Send(1, Token(7)));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  context->TryCancel();
  EXPECT_TRUE(engine_.WaitForCancel(1));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, ACallThatRunsOutOfTimeIsCancelled) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  const auto stream = stub_->Generate(&context, Request());
  EXPECT_TRUE(engine_.WaitForCancel(1));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(InferenceServiceTest, AClientThatDoesNotReadIsCancelled) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  GenerationUpdate update;  // with logprobs, to fill the flow-control window soon
  update.tokens = {1};
  update.logprobs.resize(1);
  update.logprobs[0].top.resize(100, {.token_id = 3, .logprob = -1.0f, .rank = 2});
  int sent = 0;
  while (sent < 20 * kMaxUnreadTokens && engine_.Send(1, update)) {
    ++sent;
    if (engine_.cancel_count() > 0) {
      break;
    }
  }
  EXPECT_TRUE(engine_.WaitForCancel(1)) << "after " << sent << " unread tokens";
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(InferenceServiceTest, AnErrorOfTheEngineEndsTheCallAfterItsTokens) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  ASSERT_TRUE(engine_.Send(1, Token(7)));
  GenerationUpdate failed;
  failed.finish = FinishReason::kAbort;
  failed.error = absl::InternalError("the step can never work");
  ASSERT_TRUE(engine_.Send(1, failed));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tokens_size(), 1);
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "the step can never work");
}

TEST_F(InferenceServiceTest, BadRequestsNameTheField) {
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(-1);
  const absl::Status status = Refusal(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(rpc::ErrorDetailOf(status).has_value());
  EXPECT_EQ(rpc::ErrorDetailOf(status)->param(), "temperature");
}

TEST_F(InferenceServiceTest, RefusalsOfTheEngineHaveTheirCodes) {
  const std::vector<std::pair<SubmitOutcome, absl::StatusCode>> table = {
      {SubmitOutcome::kQueueFull, absl::StatusCode::kResourceExhausted},
      {SubmitOutcome::kTooLong, absl::StatusCode::kInvalidArgument},
      {SubmitOutcome::kNeverFits, absl::StatusCode::kInvalidArgument},
      {SubmitOutcome::kInvalidToken, absl::StatusCode::kInvalidArgument},
      {SubmitOutcome::kDraining, absl::StatusCode::kUnavailable},
      {SubmitOutcome::kStopped, absl::StatusCode::kUnavailable}};
  for (const auto& [outcome, code] : table) {
    engine_.RefuseWith({.outcome = outcome, .message = "because"});
    const absl::Status status = Refusal(Request());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "because");
    if (outcome == SubmitOutcome::kTooLong) {
      EXPECT_EQ(rpc::ErrorDetailOf(status)->code(), "context_length_exceeded");
    }
  }
}

TEST_F(InferenceServiceTest, ModelAndTokenizerArrive) {
  const auto context = Context();
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(context.get(), {}, &model).ok());
  EXPECT_EQ(model.model_id(), "m");
  EXPECT_EQ(model.tokenizer_sha256(), base::Sha256Hex(Model().tokenizer));

  const auto stream_context = Context();
  const auto stream = stub_->GetTokenizer(stream_context.get(), {});
  std::string tokenizer;
  v1::GetTokenizerResponse response;
  int chunks = 0;
  while (stream->Read(&response)) {
    tokenizer += response.chunk();
    ++chunks;
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(tokenizer, Model().tokenizer);
  EXPECT_GT(chunks, 1);
}

TEST_F(InferenceServiceTest, ShutdownEndsRunningCalls) {
  const auto context = Context();
  const auto stream = stub_->Generate(context.get(), Request());
  ASSERT_TRUE(engine_.WaitForRequests(1));
  server_->Shutdown(0);
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(engine_.WaitForCancel(1));
}

TEST_F(InferenceServiceTest, AGrammarWithoutAServiceForItIsRefused) {
  v1::GenerateRequest request = Request();
  request.mutable_grammar()->set_kind(v1::GrammarSpec::KIND_JSON_OBJECT);
  EXPECT_TRUE(absl::IsUnimplemented(Refusal(request)));
  request.mutable_grammar()->set_kind(v1::GrammarSpec::KIND_UNSPECIFIED);
  request.mutable_grammar()->set_param("response_format");
  const absl::Status status = Refusal(request);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(rpc::ErrorDetailOf(status)->param(), "response_format");
}

// Prepares when it is told to.
class HeldGrammars : public GrammarService {
 public:
  void Prepare(const structured_output::GrammarSpec&, OnPrepared on_prepared) override {
    {
      const std::scoped_lock lock(mutex_);
      held_.push_back(std::move(on_prepared));
    }
    arrived_.notify_all();
  }
  bool WaitForOne() {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(60), [this] { return !held_.empty(); });
  }
  void AnswerAll(const absl::StatusOr<std::shared_ptr<TokenConstraint>>& constraint) {
    for (OnPrepared& on_prepared : held_) {
      on_prepared(constraint);
    }
    held_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<OnPrepared> held_;
};

TEST(InferenceServiceGrammar, ARequestWaitsForItsGrammarWhileOthersGoOn) {
  FakeEngine engine;
  HeldGrammars grammars;
  ServedModel model;
  model.description.set_vocab_size(100);
  InferenceService service(std::move(model), &engine, &base::SystemClock(), &grammars);
  auto server = rpc::Server::Start({.address = "127.0.0.1:0", .services = {&service}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest plain;
  plain.add_prompt_token_ids(5);
  plain.set_max_tokens(10);
  v1::GenerateRequest constrained = plain;
  constrained.mutable_grammar()->set_kind(v1::GrammarSpec::KIND_JSON_OBJECT);

  grpc::ClientContext waiting_context;
  const auto waiting = stub->Generate(&waiting_context, constrained);
  ASSERT_TRUE(grammars.WaitForOne());
  grpc::ClientContext plain_context;
  const auto other = stub->Generate(&plain_context, plain);
  ASSERT_TRUE(engine.WaitForRequests(1)) << "the other one did not wait";
  EXPECT_EQ(engine.request(0).constraint, nullptr);
  grammars.AnswerAll(std::shared_ptr<TokenConstraint>());
  EXPECT_TRUE(engine.WaitForRequests(2));

  // A client that leaves while its grammar is prepared never reaches the engine.
  grpc::ClientContext leaving_context;
  const auto leaving = stub->Generate(&leaving_context, constrained);
  ASSERT_TRUE(grammars.WaitForOne());
  leaving_context.TryCancel();
  EXPECT_FALSE(leaving->Finish().ok());
  grammars.AnswerAll(absl::InvalidArgumentError("late"));
  waiting_context.TryCancel();
  plain_context.TryCancel();
  EXPECT_TRUE(engine.WaitForCancel(1));
  EXPECT_TRUE(engine.WaitForCancel(2));
  (*server)->Shutdown(0);
}

}  // namespace
}  // namespace tandem::gpu_worker
