#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "router/fleet/fleet.h"
#include "router/frontend/endpoints/answer_writer.h"
#include "router/frontend/endpoints/stats.h"
#include "router/frontend/generation_request.h"
#include "router/frontend/http/http_types.h"
#include "router/frontend/output_choice.h"
#include "router/frontend/prompts.h"
#include "router/frontend/router_metrics.h"
#include "router/router_core/sequence_state.h"
#include "router/upstream/completion_loop.h"
#include "router/upstream/generate_call.h"
#include "router/upstream/worker_client.h"

namespace tandem::router {

// What generations share; outlives them.
struct GenerationContext {
  Fleet* fleet = nullptr;
  std::vector<WorkerClient*> workers;  // by index
  std::vector<CompletionLoop*> loops;  // by the server's thread
  RouterMetrics* metrics = nullptr;
  const base::Clock* clock = nullptr;
  RecoveryLimits recovery;
  int64_t request_timeout_us = 0;      // 0: none
  int64_t keep_alive_us = 15'000'000;  // of silence in a stream; 0: none
};

// One request's generation: its choices' calls to workers, their recovery, and the answer. Lives on
// its connection's thread; keeps itself alive until it is done.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Setup {
    GenerationRequest request;
    std::shared_ptr<const ModelInfo> model;
    std::string model_name;  // as the response gives it
    std::string request_id;
    std::vector<TokenizedPrompt> prompts;
    std::shared_ptr<RequestProgress> progress;
    uint64_t seed = 0;  // where the client gave none
    int64_t started_us = 0;
    // HTTP status, or 499 when the client left. Called once.
    std::function<void(int status)> on_done;
  };

  Generation(const GenerationContext& context, Setup setup, std::shared_ptr<Exchange> exchange);
  // 400 when max_tokens does not fit; then nothing was started.
  ApiResult Start();
  // Ends it with an error to the client; nothing when it has ended. On its connection's thread.
  void CutOff(const ApiError& error) { Fail(error); }

 private:
  struct Slot {
    Slot(const RecoveryLimits& limits, OutputChoice choice)
        : state(limits), output(std::move(choice)) {}

    SequenceState state;
    OutputChoice output;
    v1::GenerateRequest upstream;
    WorkerLease lease;
    std::shared_ptr<GenerateCall> call;
    std::unique_ptr<boost::asio::steady_timer> wait_timer;
    std::optional<uint64_t> waiter;
    bool held_back = false;  // the client is slow: messages stay in the call
    bool done = false;
    int64_t last_token_us = 0;
  };

  // One slot per sample of the prompt.
  ApiResult AddSlots(const TokenizedPrompt& prompt);
  void Dispatch(Slot* slot);
  void Wait(Slot* slot, const Decision& decision);
  void OnWaitEnded(Slot* slot, bool ready);
  void EndWait(Slot* slot);
  // Messages are there to be taken from `call`.
  void OnActivity(Slot* slot, const GenerateCall* call);
  void OnResponse(Slot* slot, const v1::GenerateResponse& response);
  void OnAttemptEnded(Slot* slot, const AttemptEnd& end);
  void ObserveTokens(Slot* slot, int count);
  void FinishSlot(Slot* slot);
  void SendNews(Slot* slot);
  void BeginStream();
  // Sends a comment whenever a stream was silent for long, so that nothing on the way gives it up.
  void KeepAlive();
  static UsageCounts UsageOf(const Slot& slot);
  // The finished choices; with best_of the best of each prompt.
  std::vector<ChoicePart> TakeChoices();
  void Complete();
  void Fail(const ApiError& error);
  void OnClientGone();
  // Ends every call and wait, and gives the status to on_done.
  void Close(int status);
  UsageCounts Usage() const;

  const GenerationContext& context_;
  Setup setup_;
  std::unique_ptr<AnswerWriter> writer_;
  EventSink sink_;
  std::shared_ptr<Exchange> exchange_;
  const ModelMetrics* metrics_ = nullptr;
  std::unique_ptr<boost::asio::steady_timer> keep_alive_timer_;
  int64_t last_sent_us_ = 0;
  std::deque<Slot> slots_;  // addresses stay
  size_t open_slots_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t deadline_unix_us_ = 0;
  bool stream_begun_ = false;
  bool first_token_seen_ = false;
  bool closed_ = false;
};

}  // namespace tandem::router
