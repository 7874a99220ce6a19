#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tandem/v1/inference.grpc.pb.h"
#include "tests/contract/router/router_fixture.h"

namespace tandem::router {
namespace {

// tandem.v1.Inference of the router. The fake's tokens are the letters I to P, beginning at the
// seed.
class GrpcTest : public RouterFixture {
 protected:
  void Start() {
    options_.grpc_listen = "127.0.0.1:0";
    worker_ = &AddWorker();
    StartRouter();
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(router_->grpc_port()), grpc::InsecureChannelCredentials()));
  }

  struct Answer {
    std::string text;
    std::vector<int32_t> tokens;
    v1::GenerateResponse last;
    grpc::Status status;
  };
  Answer Generate(const v1::GenerateRequest& request, const std::string& key = "") {
    grpc::ClientContext context;
    if (!key.empty()) {
      context.AddMetadata("authorization", "Bearer " + key);
    }
    const auto reader = stub_->Generate(&context, request);
    Answer answer;
    while (reader->Read(&answer.last)) {
      answer.text += answer.last.text();
      for (const v1::TokenOutput& token : answer.last.tokens()) {
        answer.tokens.push_back(token.token_id());
      }
    }
    answer.status = reader->Finish();
    return answer;
  }
  static v1::GenerateRequest Request(int32_t max_tokens = 5) {
    v1::GenerateRequest request;
    request.set_prompt("hello world");
    request.set_max_tokens(max_tokens);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(2);
    return request;
  }

  fakes::FakeWorker* worker_ = nullptr;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcTest, TextAndTokens) {
  Start();
  v1::GenerateRequest request = Request();
  request.set_logprobs(2);
  Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "KLMNO");
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(answer.last.tokens(0).top_logprobs_size(), 2);
  EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.last.usage().completion_tokens(), 5);
  const auto prompt = worker_->requests().at(0).prompt_token_ids();
  EXPECT_EQ(answer.last.usage().prompt_tokens(), prompt.size());
  // The same prompt as tokens.
  request.clear_prompt();
  *request.mutable_prompt_token_ids() = prompt;
  EXPECT_EQ(Generate(request).text, "KLMNO");
  request.add_stop("MN");
  answer = Generate(request);
  EXPECT_EQ(answer.text, "KL");
  EXPECT_EQ(answer.last.finish_reason(), v1::FINISH_REASON_STOP);
}

TEST_F(GrpcTest, ModelAndRefusals) {
  Start();
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.served_model_names(0), "fake-model");
  EXPECT_EQ(model.max_model_len(), 512);
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(9);
  Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ErrorDetail detail;
  ASSERT_TRUE(detail.ParseFromString(answer.status.error_details()));
  EXPECT_EQ(detail.param(), "temperature");
  request = Request();
  request.set_model("other");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request = Request();
  request.add_generated_token_ids(5);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Request();
  request.clear_prompt();
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcTest, ACancelledCallFreesTheWorker) {
  Start();
  worker_->SetScript([](fakes::FakeCall& call) {
    while (call.Write(fakes::FakeResponse(call.request(), {40}, 0))) {
    }
    return grpc::Status::CANCELLED;
  });
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(400));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(worker_->WaitForCancelled(1, 30'000'000));
  EXPECT_TRUE(Eventually([&] { return router_->running() == 0; }));
}

TEST_F(GrpcTest, TheDeadlineReachesTheWorker) {
  Start();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(500));
  const auto reader = stub_->Generate(&context, Request(1));
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const int64_t left_us =
      worker_->requests().at(0).deadline_unix_us() - base::SystemClock().UnixUs();
  EXPECT_GT(left_us, 300'000'000);
  EXPECT_LT(left_us, 501'000'000);
}

TEST_F(GrpcTest, NeedsTheKey) {
  options_.api_key = "secret-1";
  options_.grpc_listen = "127.0.0.1:0";
  options_.workers = {"127.0.0.1:1"};
  StartRouter(false);
  stub_ = v1::Inference::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(router_->grpc_port()), grpc::InsecureChannelCredentials()));
  EXPECT_EQ(Generate(Request()).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Generate(Request(), "wrong").status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Generate(Request(), "secret-1").status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace tandem::router
