#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/rpc/status.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::rpc {
namespace {

using testing::HasSubstr;

class RefusingInference : public v1::Inference::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*, v1::GetModelResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(
        ToGrpcStatus(WithErrorDetail(absl::UnavailableError("draining"), "prompt", "c")));
    return reactor;
  }
};

absl::Status CallGetModel(const std::string& address) {
  const auto stub =
      v1::Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetModelResponse response;
  return FromGrpcStatus(stub->GetModel(&context, {}, &response));
}

// grpc.health.v1 without its generated code: field 1 of the request is a service's name, and field
// 1 of the reply is 1 while SERVING, 2 while not.
int HealthOf(const std::string& address, const std::string& service = "") {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  std::string bytes;
  if (!service.empty()) {
    bytes = {'\x0a', static_cast<char>(service.size())};
    bytes += service;
  }
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (!status.ok() || !reply.Dump(&slices).ok() || slices.empty() || slices[0].size() < 2) {
    return -1;
  }
  return slices[0].begin()[1];
}

TEST(Server, ServesOnAFreePortAndOnAUnixSocket) {
  const std::string path = testing::TempDir() + "rpc." + std::to_string(getpid()) + ".sock";
  for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + path}) {
    RefusingInference service;
    const auto server = Server::Start({.address = address, .services = {&service}});
    ASSERT_TRUE(server.ok()) << server.status();
    const absl::Status status = CallGetModel((*server)->address());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "draining");
    ASSERT_TRUE(ErrorDetailOf(status).has_value()) << "details do not cross the wire";
    EXPECT_EQ(ErrorDetailOf(status)->param(), "prompt");
    EXPECT_EQ((*server)->port() == 0, address.starts_with("unix:"));
  }
}

TEST(Server, HealthFollows) {
  RefusingInference service;
  const auto server = Server::Start({.address = "127.0.0.1:0",
                                     .services = {&service},
                                     .names = {v1::Inference::service_full_name()},
                                     .serving = false});
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(HealthOf((*server)->address()), 2);
  EXPECT_EQ(HealthOf((*server)->address(), "tandem.v1.Inference"), 2);
  (*server)->SetServing(true);
  EXPECT_EQ(HealthOf((*server)->address()), 1);
  EXPECT_EQ(HealthOf((*server)->address(), "tandem.v1.Inference"), 1);
  EXPECT_EQ(HealthOf((*server)->address(), "nobody"), -1);
  (*server)->SetServing(false);
  EXPECT_EQ(HealthOf((*server)->address()), 2);
}

TEST(Server, TakesOverAStaleSocketAndRefusesATakenPort) {
  const std::string path = testing::TempDir() + "stale." + std::to_string(getpid()) + ".sock";
  RefusingInference service;
  RefusingInference other;
  {
    const auto first = Server::Start({.address = "unix:" + path, .services = {&service}});
    ASSERT_TRUE(first.ok());
  }
  const auto again = Server::Start({.address = "unix:" + path, .services = {&service}});
  EXPECT_TRUE(again.ok()) << again.status();
  RefusingInference third;
  const auto server = Server::Start({.address = "127.0.0.1:0", .services = {&third}});
  ASSERT_TRUE(server.ok());
  const auto taken = Server::Start({.address = (*server)->address(), .services = {&other}});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
}

TEST(Server, BadAddressesSayWhatIsAllowed) {
  for (const char* bad : {"", "host", "host:", ":80", "host:70000", "host:8x", "unix:"}) {
    EXPECT_THAT(std::string(CheckAddress(bad).message()), HasSubstr("allowed")) << bad;
  }
  const std::string longest(kMaxSocketPathBytes, 'p');
  EXPECT_TRUE(CheckAddress("unix:" + longest).ok());
  EXPECT_THAT(std::string(CheckAddress("unix:" + longest + "p").message()), HasSubstr("108"));
  EXPECT_TRUE(CheckAddress("[::1]:80").ok());
  EXPECT_TRUE(CheckAddress("unix:/tmp/a b:c").ok());
  for (const char* bad : {"unix:/tmp/a,b", "unix:/tmp/a%41", "unix:/tmp/a?b", "unix:/tmp/a#b"}) {
    EXPECT_THAT(std::string(CheckAddress(bad).message()), HasSubstr("allowed")) << bad;
  }
  EXPECT_EQ(Server::Start({.address = "nonsense"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::rpc
