#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "router/fleet/fleet.h"
#include "router/frontend/generation_request.h"
#include "router/frontend/grpc/grpc_exchange.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::router {

// tandem.v1.Inference for clients: what the HTTP API does, with text or token prompts, for those
// who prefer gRPC. Thread-safe.
class InferenceGateway : public v1::Inference::CallbackService {
 public:
  // Runs a request whose answer goes to the exchange; called on the exchange's thread.
  using Run = std::function<void(GenerationRequest request, std::string request_id,
                                 std::shared_ptr<Exchange> exchange)>;
  // The next thread to serve a call.
  using NextPlace = std::function<GrpcExchange::Place()>;

  InferenceGateway(const Fleet* fleet, std::string api_key, NextPlace next_place, Run run)
      : fleet_(fleet),
        api_key_(std::move(api_key)),
        next_place_(std::move(next_place)),
        run_(std::move(run)) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  bool HasKey(const grpc::CallbackServerContext& context) const;

  const Fleet* const fleet_;
  const std::string api_key_;
  const NextPlace next_place_;
  const Run run_;
};

// The request as HTTP clients would send it; 400 for what is out of range.
ApiResult FromProto(const v1::GenerateRequest& proto, GenerationRequest* request);

}  // namespace tandem::router
