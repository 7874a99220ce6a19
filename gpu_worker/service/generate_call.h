#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>

#include "gpu_worker/engine/engine.h"
#include "gpu_worker/service/grammar_service.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::gpu_worker {

// Unread tokens of one stream beyond which its client counts as gone.
inline constexpr int kMaxUnreadTokens = 4096;

// One Generate call: carries the engine's updates to the client. Updates that arrive while a
// message is being written are merged into the next one, so the engine's thread never waits and
// the buffer is one message of bounded size. It lives until gRPC and the engine have let it go.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  // Ends the call at once with `status`.
  static GenerateCall* Refuse(const absl::Status& status);
  // Submits to the engine, which must outlive every call.
  static GenerateCall* Start(Engine* engine, grpc::CallbackServerContext* context,
                             GenerationRequest request);
  // The same once `grammar` is prepared; meanwhile others go on. A null service refuses it.
  static GenerateCall* StartWithGrammar(Engine* engine, GrammarService* grammars,
                                        grpc::CallbackServerContext* context,
                                        GenerationRequest request,
                                        const structured_output::GrammarSpec& grammar);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateCall(Engine* engine, grpc::CallbackServerContext* context)
      : engine_(engine), context_(context) {}
  void Submit(GenerationRequest request);
  void OnGrammar(GenerationRequest request,
                 absl::StatusOr<std::shared_ptr<TokenConstraint>> constraint);
  void OnUpdate(const GenerationUpdate& update);
  void Take(const GenerationUpdate& update);
  // What to do next, decided under the lock and done outside of it.
  enum class Next { kNothing, kWrite, kFinish };
  Next Decide();
  void Do(Next next);
  void End(const absl::Status& status);

  Engine* engine_;
  grpc::CallbackServerContext* context_;  // valid until OnDone
  std::string request_id_;
  std::shared_ptr<GenerateCall> self_;  // gRPC's share, until OnDone

  std::mutex mutex_;
  v1::GenerateResponse pending_;
  bool has_pending_ = false;
  bool writing_ = false;
  bool ended_ = false;      // nothing more is taken from the engine; status_ is final
  bool finishing_ = false;  // Finish was or is being called
  absl::Status status_;
  uint64_t sequence_id_ = 0;
  bool submitted_ = false;
  bool engine_done_ = false;  // the engine said its last word
  bool done_ = false;         // gRPC has let the call go

  v1::GenerateResponse in_flight_;  // gRPC's while writing_
};

}  // namespace tandem::gpu_worker
