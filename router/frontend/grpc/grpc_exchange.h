#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "router/frontend/http/http_types.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::router {

// The answer to one gRPC call, as an Exchange whose events are serialized GenerateResponses. Its
// methods run on one of the HTTP server's threads; gRPC's callbacks are posted there.
class GrpcExchange : public Exchange, public std::enable_shared_from_this<GrpcExchange> {
 public:
  struct Place {
    boost::asio::io_context* io = nullptr;
    int io_index = 0;
    size_t max_unsent_bytes = 0;
  };

  static std::shared_ptr<GrpcExchange> Create(const Place& place);
  // What gRPC gets; valid until the call is over.
  grpc::ServerWriteReactor<v1::GenerateResponse>* reactor();

  void set_request_id(const std::string&) override {}
  void set_on_gone(std::function<void()> on_gone) override { on_gone_ = std::move(on_gone); }
  void set_on_drained(std::function<void()> f) override { on_drained_ = std::move(f); }
  bool gone() const override { return gone_; }
  // Only errors come whole.
  void Respond(HttpResponse response) override;
  void BeginEvents() override {}
  void Event(std::string_view event, std::string_view data) override;
  void Comment(std::string_view) override {}
  void Flush() override { WriteNext(); }
  bool congested() const override { return unsent_bytes_ >= place_.max_unsent_bytes; }
  void EndEvents() override { End(grpc::Status::OK); }
  void AbortEvents(const ApiError& error) override;
  boost::asio::io_context& io() override { return *place_.io; }
  int io_index() const override { return place_.io_index; }

 private:
  class Reactor;

  explicit GrpcExchange(const Place& place) : place_(place) {}
  void WriteNext();
  void OnWritten(bool ok);
  void OnCancelled();
  // Once everything is written.
  void End(grpc::Status status);
  // Once the write that is under way is over.
  void FinishOnceIdle(grpc::Status status);

  const Place place_;
  Reactor* reactor_ = nullptr;  // deletes itself when gRPC is done with it
  std::deque<v1::GenerateResponse> queue_;
  v1::GenerateResponse current_;
  size_t unsent_bytes_ = 0;
  bool writing_ = false;
  bool was_congested_ = false;
  bool gone_ = false;
  bool finished_ = false;
  bool ending_ = false;
  grpc::Status end_;
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

// How gRPC clients are told of an error; its details hold an ErrorDetail.
grpc::Status ToGrpc(const ApiError& error);

}  // namespace tandem::router
