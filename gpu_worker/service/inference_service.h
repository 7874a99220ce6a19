#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/service/grammar_service.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::gpu_worker {

// What the service says about its model; does not change while it runs.
struct ServedModel {
  v1::GetModelResponse description;
  std::string tokenizer;  // a serialized TokenizerSpec
};

// The Inference protocol on an engine, which must outlive the gRPC server.
class InferenceService : public v1::Inference::CallbackService {
 public:
  // `grammars` may be null: structured output is refused then. Both outlive the gRPC server.
  InferenceService(ServedModel model, Engine* engine, const base::Clock* clock,
                   GrammarService* grammars = nullptr);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerWriteReactor<v1::GetTokenizerResponse>* GetTokenizer(
      grpc::CallbackServerContext* context, const v1::GetTokenizerRequest* request) override;

 private:
  ServedModel model_;
  Engine* engine_;
  const base::Clock* clock_;
  GrammarService* grammars_;
};

}  // namespace tandem::gpu_worker
