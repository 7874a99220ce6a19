#include "gpu_worker/service/inference_service.h"

#include <algorithm>
#include <string_view>

#include "common/base/sha256.h"
#include "gpu_worker/service/generate_call.h"
#include "gpu_worker/service/request_conversion.h"

namespace tandem::gpu_worker {
namespace {

// Below gRPC's default message limit of 4 MiB.
constexpr size_t kTokenizerChunkBytes = 1 << 20;

// Sends a text that outlives it in chunks; deletes itself.
class TokenizerCall : public grpc::ServerWriteReactor<v1::GetTokenizerResponse> {
 public:
  explicit TokenizerCall(std::string_view rest) : rest_(rest) { WriteNext(); }
  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (rest_.empty()) {
      Finish(grpc::Status::OK);
      return;
    }
    const std::string_view chunk = rest_.substr(0, kTokenizerChunkBytes);
    rest_.remove_prefix(chunk.size());
    message_.set_chunk(std::string(chunk));
    StartWrite(&message_);
  }

  std::string_view rest_;
  v1::GetTokenizerResponse message_;
};

}  // namespace

InferenceService::InferenceService(ServedModel model, Engine* engine, const base::Clock* clock,
                                   GrammarService* grammars)
    : model_(std::move(model)), engine_(engine), clock_(clock), grammars_(grammars) {
  model_.description.set_tokenizer_sha256(base::Sha256Hex(model_.tokenizer));
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  absl::StatusOr<GenerationRequest> converted =
      ToGenerationRequest(*request, model_.description.vocab_size(), *clock_);
  if (!converted.ok()) {
    return GenerateCall::Refuse(converted.status());
  }
  if (request->has_grammar()) {
    const absl::StatusOr<structured_output::GrammarSpec> grammar =
        ToGrammarSpec(request->grammar());
    return grammar.ok() ? GenerateCall::StartWithGrammar(engine_, grammars_, context,
                                                         *std::move(converted), *grammar)
                        : GenerateCall::Refuse(grammar.status());
  }
  return GenerateCall::Start(engine_, context, *std::move(converted));
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest*,
                                                     v1::GetModelResponse* response) {
  *response = model_.description;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::GetTokenizerResponse>* InferenceService::GetTokenizer(
    grpc::CallbackServerContext*, const v1::GetTokenizerRequest*) {
  return new TokenizerCall(model_.tokenizer);
}

}  // namespace tandem::gpu_worker
