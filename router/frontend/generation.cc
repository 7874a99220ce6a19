#include "router/frontend/generation.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "router/frontend/tools.h"
#include "router/frontend/upstream_request.h"

namespace tandem::router {

namespace asio = boost::asio;

namespace {

constexpr double kMicrosecond = 1e-6;

}  // namespace

Generation::Generation(const GenerationContext& context, Setup setup,
                       std::shared_ptr<Exchange> exchange)
    : context_(context), setup_(std::move(setup)), exchange_(std::move(exchange)) {
  const GenerationRequest& request = setup_.request;
  ResponseHead head;
  head.endpoint = request.endpoint;
  head.stream = request.stream;
  head.id = std::string(IdPrefix(request.endpoint)) + setup_.request_id;
  head.created_unix_s = context_.clock->UnixUs() / 1'000'000;
  head.model = setup_.model_name;
  head.system_fingerprint = setup_.model->system_fingerprint;
  writer_ = MakeAnswerWriter(std::move(head), &setup_.request);
  metrics_ = context_.metrics->ForModel(setup_.model_name);
  const int64_t timeout_us = context_.request_timeout_us;
  deadline_unix_us_ = timeout_us > 0 ? context_.clock->UnixUs() + timeout_us : 0;
  if (request.deadline_unix_us > 0) {
    deadline_unix_us_ = deadline_unix_us_ > 0
                            ? std::min(deadline_unix_us_, request.deadline_unix_us)
                            : request.deadline_unix_us;
  }
}

ApiResult Generation::AddSlots(const TokenizedPrompt& prompt) {
  const GenerationRequest& request = setup_.request;
  UpstreamParams params;
  const auto prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  if (ApiResult error = MaxTokensFor(request, *setup_.model, prompt_tokens, &params.max_tokens)) {
    return error;
  }
  prompt_tokens_ += prompt_tokens;
  params.deadline_unix_us = deadline_unix_us_;
  const uint64_t seed = request.seed ? static_cast<uint64_t>(*request.seed) : setup_.seed;
  for (int64_t sample = 0; sample < SamplesPerPrompt(request); ++sample) {
    const int index = static_cast<int>(slots_.size());
    Slot& slot = slots_.emplace_back(
        context_.recovery, OutputChoice(index, &request, setup_.model->text.get(), &prompt));
    params.request_id =
        index == 0 ? setup_.request_id : setup_.request_id + "-" + std::to_string(index);
    params.seed = seed + static_cast<uint64_t>(sample);
    if (IsChat(request.endpoint) && setup_.model->text) {
      slot.output.set_parser(ParserFor(request, *setup_.model->text, prompt, params.request_id));
    }
    FillUpstream(request, setup_.model->defaults, prompt, params, &slot.upstream);
  }
  return std::nullopt;
}

ApiResult Generation::Start() {
  for (const TokenizedPrompt& prompt : setup_.prompts) {
    if (ApiResult error = AddSlots(prompt)) {
      return error;
    }
  }
  open_slots_ = slots_.size();
  if (setup_.request.stream) {
    sink_ = [this](std::string_view event, std::string_view data) {
      exchange_->Event(event, data);
      last_sent_us_ = context_.clock->NowUs();
    };
    last_sent_us_ = context_.clock->NowUs();
    KeepAlive();
  }
  exchange_->set_on_gone([self = shared_from_this()] { self->OnClientGone(); });
  exchange_->set_on_drained([self = shared_from_this()] {
    for (Slot& slot : self->slots_) {
      if (slot.held_back && slot.call) {
        self->OnActivity(&slot, slot.call.get());
      }
    }
  });
  for (Slot& slot : slots_) {
    if (closed_) {
      break;
    }
    if (&slot !=
        &slots_.front()) {  // what took the first must not fail by the worker's death since
      slot.state.OnSiblingDispatched(context_.clock->NowUs());
    }
    Dispatch(&slot);
  }
  return std::nullopt;
}

void Generation::Dispatch(Slot* slot) {
  PickRequest pick;
  pick.model_id = setup_.model->id;
  pick.excluded_workers = slot->state.excluded_workers();
  slot->lease = context_.fleet->Acquire(pick);
  if (!slot->lease.held()) {
    const Decision decision = slot->state.OnNoWorker(context_.clock->NowUs());
    if (decision.step == Decision::Step::kWait) {
      Wait(slot, decision);
    } else {
      Fail(decision.error);
    }
    return;
  }
  slot->state.OnDispatched(slot->lease.worker());
  const std::vector<int32_t>& generated = slot->state.generated();
  if (!generated.empty()) {
    slot->upstream.mutable_generated_token_ids()->Clear();
    slot->upstream.mutable_generated_token_ids()->Add(generated.begin(), generated.end());
    slot->upstream.clear_prompt_logprobs();  // the client has them
  }
  // The call may outlive its place in the slot: what it says then is no longer of interest.
  auto current = std::make_shared<std::weak_ptr<GenerateCall>>();
  auto notify = [self = shared_from_this(), slot, current, &io = exchange_->io()] {
    asio::post(io, [self, slot, current] {
      if (!self->closed_ && slot->call && slot->call == current->lock()) {
        self->OnActivity(slot, slot->call.get());
      }
    });
  };
  slot->call = GenerateCall::Start(context_.workers[slot->lease.worker()]->stub(),
                                   *context_.loops[exchange_->io_index()], slot->upstream,
                                   std::move(notify));
  *current = slot->call;
}

void Generation::Wait(Slot* slot, const Decision& decision) {
  slot->wait_timer = std::make_unique<asio::steady_timer>(exchange_->io());
  slot->wait_timer->expires_after(std::chrono::microseconds(
      std::max<int64_t>(0, decision.deadline_us - context_.clock->NowUs())));
  slot->wait_timer->async_wait([self = shared_from_this(), slot](boost::system::error_code error) {
    if (!error && !self->closed_ && slot->waiter) {
      self->EndWait(slot);
      self->Fail(slot->state.OnWaitExpired());
    }
  });
  slot->waiter = 0;
  const auto waiter = context_.fleet->WaitForReady(
      setup_.model->id, decision.unless_refused,
      [self = shared_from_this(), slot, &io = exchange_->io()](bool ready) {
        asio::post(io, [self, slot, ready] { self->OnWaitEnded(slot, ready); });
      });
  if (!waiter) {
    EndWait(slot);
    Fail(slot->state.OnWaitExpired());
    return;
  }
  slot->waiter = *waiter;
}

void Generation::OnWaitEnded(Slot* slot, bool ready) {
  if (closed_ || !slot->waiter) {
    return;
  }
  EndWait(slot);
  if (ready) {
    slot->state.OnWorkerReady();
    Dispatch(slot);
  } else {
    Fail(slot->state.OnRefused());
  }
}

void Generation::EndWait(Slot* slot) {
  if (slot->waiter) {
    context_.fleet->CancelWait(*std::exchange(slot->waiter, std::nullopt));
    slot->wait_timer.reset();
  }
}

void Generation::OnActivity(Slot* slot, const GenerateCall* call) {
  if (setup_.request.stream && exchange_->congested()) {
    slot->held_back = true;
    return;
  }
  slot->held_back = false;
  const auto self = shared_from_this();
  GenerateCall::Batch batch = slot->call->Take();
  for (const v1::GenerateResponse& response : batch.responses) {
    OnResponse(slot, response);
    if (closed_ || slot->done) {
      break;
    }
    if (response.finish_reason() == v1::FINISH_REASON_ABORT) {
      batch.end = AttemptEnd{absl::StatusCode::kInternal, "the worker gave the sequence up"};
      break;
    }
  }
  if (!closed_ && batch.end && !slot->done && slot->call.get() == call) {
    OnAttemptEnded(slot, *batch.end);
  }
  if (!closed_ && stream_begun_) {
    exchange_->Flush();
  }
}

void Generation::OnResponse(Slot* slot, const v1::GenerateResponse& response) {
  ObserveTokens(slot, response.tokens_size());
  for (const v1::TokenOutput& token : response.tokens()) {
    const int32_t id = token.token_id();
    slot->state.OnTokens({&id, 1});
  }
  slot->output.Add(response);
  if (setup_.request.stream) {
    SendNews(slot);
  }
  if (slot->output.finished()) {
    FinishSlot(slot);
  }
}

void Generation::ObserveTokens(Slot* slot, int count) {
  if (count == 0) {
    return;
  }
  slot->lease.OnFirstToken();
  setup_.progress->tokens.fetch_add(count, std::memory_order_relaxed);
  const int64_t now_us = context_.clock->NowUs();
  if (slot->last_token_us != 0) {
    metrics_->inter_token_s->Observe(kMicrosecond *
                                     static_cast<double>(now_us - slot->last_token_us));
  } else if (!std::exchange(first_token_seen_, true)) {
    metrics_->first_token_s->Observe(kMicrosecond *
                                     static_cast<double>(now_us - setup_.started_us));
  }
  slot->last_token_us = now_us;
}

void Generation::OnAttemptEnded(Slot* slot, const AttemptEnd& end) {
  const Decision decision = slot->state.OnAttemptEnded(end, context_.clock->NowUs());
  base::LogWarning("a call to a worker ended early",
                   {{"request_id", setup_.request_id},
                    {"worker", context_.fleet->address(slot->lease.worker())},
                    {"error", end.message},
                    {"tokens", static_cast<uint64_t>(slot->state.generated().size())}});
  slot->call->Cancel();
  slot->call.reset();
  if (decision.step == Decision::Step::kDispatch &&
      decision.reason == RecoveryReason::kUnavailable) {
    slot->lease.ReportLost();
  }
  slot->lease.Release();
  if (decision.step == Decision::Step::kFail) {
    Fail(decision.error);
    return;
  }
  context_.metrics->CountRecovery(slot->state.resumed(), decision.reason);
  Dispatch(slot);
}

void Generation::FinishSlot(Slot* slot) {
  slot->done = true;
  if (slot->output.stopped_by_text()) {
    slot->call->Cancel();
  }
  slot->call.reset();
  slot->lease.Release();
  if (--open_slots_ == 0) {
    Complete();
  }
}

void Generation::BeginStream() {
  if (!std::exchange(stream_begun_, true)) {
    exchange_->BeginEvents();
  }
}

void Generation::KeepAlive() {
  if (context_.keep_alive_us <= 0) {
    return;
  }
  if (!keep_alive_timer_) {
    keep_alive_timer_ = std::make_unique<asio::steady_timer>(exchange_->io());
  }
  keep_alive_timer_->expires_after(std::chrono::microseconds(
      std::max<int64_t>(1, last_sent_us_ + context_.keep_alive_us - context_.clock->NowUs())));
  keep_alive_timer_->async_wait([weak = weak_from_this()](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_) {
      return;
    }
    const int64_t now_us = self->context_.clock->NowUs();
    if (now_us - self->last_sent_us_ >= self->context_.keep_alive_us) {
      self->last_sent_us_ = now_us;
      if (!self->exchange_->congested()) {
        self->BeginStream();
        self->exchange_->Comment("ping");
        self->exchange_->Flush();
      }
    }
    self->KeepAlive();
  });
}

void Generation::SendNews(Slot* slot) {
  if (!slot->output.has_news()) {
    return;
  }
  BeginStream();
  writer_->Part(slot->output.Take(), UsageOf(*slot), sink_);
}

UsageCounts Generation::UsageOf(const Slot& slot) {
  UsageCounts usage;
  usage.prompt_tokens = static_cast<int64_t>(slot.output.prompt().tokens.size());
  usage.completion_tokens = slot.output.completion_tokens();
  usage.cached_tokens = slot.output.cached_tokens();
  usage.reasoning_tokens = slot.output.reasoning_tokens();
  return usage;
}

UsageCounts Generation::Usage() const {
  UsageCounts usage;
  usage.prompt_tokens = prompt_tokens_;
  for (const Slot& slot : slots_) {
    usage.completion_tokens += slot.output.completion_tokens();
    usage.cached_tokens += slot.output.cached_tokens();
    usage.reasoning_tokens += slot.output.reasoning_tokens();
  }
  usage.cached_tokens = std::min(usage.cached_tokens, usage.prompt_tokens);
  return usage;
}

std::vector<ChoicePart> Generation::TakeChoices() {
  const auto samples = static_cast<size_t>(SamplesPerPrompt(setup_.request));
  const auto n = static_cast<size_t>(setup_.request.n.value_or(1));
  std::vector<ChoicePart> parts;
  for (size_t first = 0; first < slots_.size(); first += samples) {
    std::vector<Slot*> candidates;
    for (size_t i = first; i < first + samples; ++i) {
      candidates.push_back(&slots_[i]);
    }
    if (n < samples) {
      std::stable_sort(candidates.begin(), candidates.end(), [](const Slot* a, const Slot* b) {
        return a->output.mean_logprob() > b->output.mean_logprob();
      });
    }
    for (size_t i = 0; i < n; ++i) {
      parts.push_back(candidates[i]->output.Take());
      parts.back().index = static_cast<int>(parts.size()) - 1;
    }
  }
  return parts;
}

void Generation::Complete() {
  const UsageCounts usage = Usage();
  if (setup_.request.stream) {
    writer_->End(usage, sink_);
    exchange_->EndEvents();
    Close(200);
    return;
  }
  HttpResponse response;
  response.body = writer_->Whole(TakeChoices(), usage);
  exchange_->Respond(std::move(response));
  Close(200);
}

void Generation::Fail(const ApiError& error) {
  if (closed_) {
    return;
  }
  if (stream_begun_) {
    writer_->Break(error, sink_);
    exchange_->AbortEvents(error);
  } else {
    HttpResponse response;
    response.status = error.http_status;
    response.body = ErrorBodyFor(setup_.request.endpoint, error);
    response.error = error;
    if (error.retry_after_s > 0) {
      response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    }
    exchange_->Respond(std::move(response));
  }
  Close(error.http_status);
}

void Generation::OnClientGone() {
  if (!closed_) {
    Close(499);
  }
}

void Generation::Close(int status) {
  const auto self = shared_from_this();
  closed_ = true;
  for (Slot& slot : slots_) {
    EndWait(&slot);
    if (slot.call) {
      slot.call->Cancel();
      slot.call.reset();
    }
    slot.lease.Release();
  }
  metrics_->duration_s->Observe(kMicrosecond *
                                static_cast<double>(context_.clock->NowUs() - setup_.started_us));
  const UsageCounts usage = Usage();
  base::LogInfo("request done",
                {{"request_id", setup_.request_id},
                 {"status", status},
                 {"prompt_tokens", usage.prompt_tokens},
                 {"completion_tokens", usage.completion_tokens},
                 {"duration_ms", (context_.clock->NowUs() - setup_.started_us) / 1000}});
  keep_alive_timer_.reset();
  exchange_.reset();
  if (const auto on_done = std::exchange(setup_.on_done, nullptr)) {
    on_done(status);
  }
}

}  // namespace tandem::router
