#include "gpu_worker/service/generate_call.h"

#include "common/base/log.h"
#include "common/rpc/status.h"
#include "gpu_worker/service/request_conversion.h"

namespace tandem::gpu_worker {
namespace {

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "unknown";
}

}  // namespace

GenerateCall* GenerateCall::Refuse(const absl::Status& status) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(nullptr, nullptr));
  call->self_ = call;
  call->End(status);
  return call.get();
}

GenerateCall* GenerateCall::Start(Engine* engine, grpc::CallbackServerContext* context,
                                  GenerationRequest request) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(engine, context));
  call->self_ = call;
  call->Submit(std::move(request));
  return call.get();
}

GenerateCall* GenerateCall::StartWithGrammar(Engine* engine, GrammarService* grammars,
                                             grpc::CallbackServerContext* context,
                                             GenerationRequest request,
                                             const structured_output::GrammarSpec& grammar) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(engine, context));
  call->self_ = call;
  if (grammars == nullptr) {
    call->End(absl::UnimplementedError("structured output is not available"));
    return call.get();
  }
  grammars->Prepare(grammar, [call, request = std::move(request)](auto constraint) mutable {
    call->OnGrammar(std::move(request), std::move(constraint));
  });
  return call.get();
}

// On any thread; the client may have gone meanwhile.
void GenerateCall::OnGrammar(GenerationRequest request,
                             absl::StatusOr<std::shared_ptr<TokenConstraint>> constraint) {
  if (!constraint.ok()) {
    base::LogInfo("request refused", {{"request_id", request.request_id},
                                      {"reason", std::string(constraint.status().message())}});
    End(constraint.status());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
  }
  request.constraint = *std::move(constraint);
  Submit(std::move(request));
}

void GenerateCall::Submit(GenerationRequest request) {
  request_id_ = request.request_id;
  base::LogDebug("request accepted",
                 {{"request_id", request_id_},
                  {"prompt_tokens", static_cast<uint64_t>(request.prompt_tokens.size())},
                  {"resumed_tokens", static_cast<uint64_t>(request.resumed_tokens.size())},
                  {"max_tokens", request.max_tokens}});
  const SubmitResult result = engine_->Submit(
      std::move(request),
      [call = shared_from_this()](const GenerationUpdate& update) { call->OnUpdate(update); });
  if (result.outcome != SubmitOutcome::kAccepted) {
    base::LogInfo("request refused", {{"request_id", request_id_}, {"reason", result.message}});
    End(RefusalStatus(result));
    return;
  }
  base::LogDebug("request queued",
                 {{"request_id", request_id_}, {"sequence_id", result.sequence_id}});
  bool is_gone = false;
  {
    const std::lock_guard lock(mutex_);
    sequence_id_ = result.sequence_id;
    submitted_ = true;
    is_gone = done_ && !engine_done_;
  }
  if (is_gone) {  // the client left while the engine took it
    engine_->Cancel(result.sequence_id);
  }
}

void GenerateCall::OnUpdate(const GenerationUpdate& update) {
  const bool last = update.finish != FinishReason::kNone || !update.error.ok();
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    engine_done_ = engine_done_ || last;
    if (ended_) {
      return;
    }
    Take(update);
    ended_ = ended_ || last;
    next = Decide();
  }
  if (last) {
    base::LogInfo("request ended", {{"request_id", request_id_},
                                    {"finish", FinishName(update.finish)},
                                    {"status", std::string(update.error.message())},
                                    {"prompt_tokens", update.prompt_tokens},
                                    {"completion_tokens", update.completion_tokens}});
  }
  Do(next);
}

void GenerateCall::Take(const GenerationUpdate& update) {
  if (!update.error.ok()) {
    status_ = update.error;
    return;
  }
  AppendUpdate(update, &pending_);
  has_pending_ = true;
  if (writing_ && pending_.tokens_size() > kMaxUnreadTokens) {
    status_ = absl::ResourceExhaustedError("the client does not read its stream");
    has_pending_ = false;
    ended_ = true;
    // Ends the write that hangs. The context is still there: while a write runs nothing finishes.
    context_->TryCancel();
  }
}

GenerateCall::Next GenerateCall::Decide() {
  if (writing_ || finishing_) {
    return Next::kNothing;
  }
  if (has_pending_) {
    in_flight_.Swap(&pending_);
    pending_.Clear();
    has_pending_ = false;
    writing_ = true;
    return Next::kWrite;
  }
  if (ended_) {
    finishing_ = true;
    return Next::kFinish;
  }
  return Next::kNothing;
}

void GenerateCall::Do(Next next) {
  // Finish is only called while no write runs, and OnDone only follows Finish: neither call below
  // can find the reactor gone.
  if (next == Next::kWrite) {
    StartWrite(&in_flight_);
  } else if (next == Next::kFinish) {
    Finish(rpc::ToGrpcStatus(status_));
  }
}

void GenerateCall::End(const absl::Status& status) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      status_ = status;
    }
    ended_ = true;
    next = Decide();
  }
  Do(next);
}

void GenerateCall::OnWriteDone(bool ok) {
  Next next = Next::kNothing;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) {
      status_ = absl::CancelledError("the client went away");
      has_pending_ = false;
      ended_ = true;
    }
    next = Decide();
  }
  Do(next);
}

void GenerateCall::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    has_pending_ = false;
  }
  End(absl::CancelledError("the call was cancelled"));
}

void GenerateCall::OnDone() {
  bool cancel = false;
  {
    const std::lock_guard lock(mutex_);
    cancel = submitted_ && !engine_done_;
    done_ = true;
  }
  if (cancel) {
    base::LogInfo("request cancelled",
                  {{"request_id", request_id_}, {"reason", std::string(status_.message())}});
    engine_->Cancel(sequence_id_);
  }
  const std::shared_ptr<GenerateCall> last = std::move(self_);  // may destroy this at its end
}

}  // namespace tandem::gpu_worker
