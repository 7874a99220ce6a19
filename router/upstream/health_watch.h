#pragma once

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdint>
#include <memory>

namespace tandem::router {

// One grpc.health.v1.Health/Watch stream, read by one thread; Cancel may come from any. The
// standard messages have the wire form of protobuf's wrappers (one field, number 1), which spares
// us a copy of their .proto.
class HealthWatch {
 public:
  enum class Event { kServing, kNotServing, kNothing, kEnded };

  // Waits for the channel to connect, however long that takes.
  explicit HealthWatch(const std::shared_ptr<grpc::Channel>& channel);
  ~HealthWatch();

  // The next change, or kNothing after `timeout_us`. After kEnded there is nothing more.
  Event Next(int64_t timeout_us);
  void Cancel() { context_.TryCancel(); }

 private:
  using Stub =
      grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value>;
  enum class Phase { kStarting, kWriting, kReading, kEnded };

  void Advance(bool ok);

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  Stub stub_;
  std::unique_ptr<
      grpc::ClientAsyncReaderWriter<google::protobuf::StringValue, google::protobuf::Int32Value>>
      stream_;
  google::protobuf::Int32Value response_;
  Phase phase_ = Phase::kStarting;
  bool has_response_ = false;
};

}  // namespace tandem::router
