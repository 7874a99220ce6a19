#include "router/frontend/generation.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/base/log.h"

namespace tandem::router {

namespace asio = boost::asio;

namespace {

constexpr double kMicrosecond = 1e-6;

template <typename Requested, typename Default>
float Pick(const std::optional<Requested>& requested, const std::optional<Default>& fallback,
           float otherwise) {
  return requested  ? static_cast<float>(*requested)
         : fallback ? static_cast<float>(*fallback)
                    : otherwise;
}

void FillSampling(const GenerationRequest& request, const GenerationDefaults& defaults,
                  v1::SamplingParams* sampling) {
  sampling->set_temperature(Pick(request.temperature, defaults.temperature, 1.0F));
  sampling->set_top_p(Pick(request.top_p, defaults.top_p, 1.0F));
  sampling->set_min_p(Pick(request.min_p, defaults.min_p, 0.0F));
  sampling->set_repetition_penalty(
      Pick(request.repetition_penalty, defaults.repetition_penalty, 1.0F));
  sampling->set_presence_penalty(static_cast<float>(request.presence_penalty.value_or(0)));
  sampling->set_frequency_penalty(static_cast<float>(request.frequency_penalty.value_or(0)));
  sampling->set_top_k(
      static_cast<int32_t>(request.top_k ? *request.top_k : int64_t{defaults.top_k.value_or(0)}));
  for (const auto& [id, bias] : request.logit_bias) {
    (*sampling->mutable_logit_bias())[id] = bias;
  }
}

}  // namespace

Generation::Generation(const GenerationContext& context, Setup setup,
                       std::shared_ptr<Exchange> exchange)
    : context_(context), setup_(std::move(setup)), exchange_(std::move(exchange)) {
  const GenerationRequest& request = setup_.request;
  const bool chat = request.endpoint == Endpoint::kChat;
  head_.endpoint = request.endpoint;
  head_.stream = request.stream;
  head_.id = (chat ? "chatcmpl-" : "cmpl-") + setup_.request_id;
  head_.created_unix_s = context_.clock->UnixUs() / 1'000'000;
  head_.model = setup_.model_name;
  head_.system_fingerprint = setup_.model->system_fingerprint;
  metrics_ = context_.metrics->ForModel(setup_.model_name);
  const int64_t timeout_us = context_.request_timeout_us;
  deadline_unix_us_ = timeout_us > 0 ? context_.clock->UnixUs() + timeout_us : 0;
}

ApiResult Generation::Start() {
  const GenerationRequest& request = setup_.request;
  const int64_t n = request.n.value_or(1);
  for (const TokenizedPrompt& prompt : setup_.prompts) {
    int32_t max_tokens = 0;
    const int64_t prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
    if (ApiResult error = MaxTokensFor(request, *setup_.model, prompt_tokens, &max_tokens)) {
      return error;
    }
    prompt_tokens_ += prompt_tokens;
    for (int64_t sample = 0; sample < n; ++sample) {
      const int index = static_cast<int>(slots_.size());
      slots_.emplace_back(context_.recovery,
                          OutputChoice(index, &request, setup_.model->text.get(), &prompt));
      BuildUpstream(&slots_.back(), max_tokens, sample);
    }
  }
  open_slots_ = slots_.size();
  if (request.stream) {
    chunk_prefix_ = ResponsePrefix(head_);
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
    if (!closed_) {
      Dispatch(&slot);
    }
  }
  return std::nullopt;
}

void Generation::BuildUpstream(Slot* slot, int32_t max_tokens, int64_t sample_index) {
  const GenerationRequest& request = setup_.request;
  v1::GenerateRequest& upstream = slot->upstream;
  upstream.set_request_id(slot->output.index() == 0
                              ? setup_.request_id
                              : setup_.request_id + "-" + std::to_string(slot->output.index()));
  const std::vector<int32_t>& tokens = slot->output.prompt().tokens;
  upstream.mutable_prompt_token_ids()->Add(tokens.begin(), tokens.end());
  FillSampling(request, setup_.model->defaults, upstream.mutable_sampling());
  const uint64_t seed = request.seed ? static_cast<uint64_t>(*request.seed) : setup_.seed;
  upstream.mutable_sampling()->set_seed(seed + static_cast<uint64_t>(sample_index));
  upstream.set_max_tokens(max_tokens);
  upstream.set_min_tokens(static_cast<int32_t>(request.min_tokens.value_or(0)));
  upstream.set_ignore_eos(request.ignore_eos);
  upstream.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(),
                                         request.stop_token_ids.end());
  upstream.set_priority(static_cast<int32_t>(request.priority.value_or(0)));
  upstream.set_deadline_unix_us(deadline_unix_us_);
  if (request.logprobs) {
    upstream.set_logprobs(static_cast<int32_t>(*request.logprobs));
  }
  if (request.prompt_logprobs || (request.echo && request.logprobs)) {
    upstream.set_prompt_logprobs(static_cast<int32_t>(std::max(
        request.prompt_logprobs.value_or(0), request.echo ? request.logprobs.value_or(0) : 0)));
  }
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

void Generation::SendEvent(const std::string& choice_json, const UsageCounts* usage) {
  std::string data = chunk_prefix_;
  data += choice_json;
  data += ']';
  if (usage != nullptr) {
    data += ",\"usage\":";
    AppendUsage(*usage, &data);
  } else if (setup_.request.include_usage) {
    data += ",\"usage\":null";
  }
  data += '}';
  exchange_->Event("", data);
}

void Generation::SendNews(Slot* slot) {
  if (!slot->output.has_news()) {
    return;
  }
  BeginStream();
  UsageCounts usage;
  const bool continuous = setup_.request.continuous_usage;
  if (continuous) {
    usage.prompt_tokens = static_cast<int64_t>(slot->output.prompt().tokens.size());
    usage.completion_tokens = slot->output.completion_tokens();
    usage.cached_tokens = slot->output.cached_tokens();
  }
  std::string choice;
  if (head_.endpoint == Endpoint::kChat && !std::exchange(slot->role_sent, true)) {
    AppendRoleChoice(slot->output.index(), &choice);
    SendEvent(choice, continuous ? &usage : nullptr);
    choice.clear();
  }
  AppendChoice(head_, slot->output.Take(), &choice);
  SendEvent(choice, continuous ? &usage : nullptr);
}

UsageCounts Generation::Usage() const {
  UsageCounts usage;
  usage.prompt_tokens = prompt_tokens_;
  for (const Slot& slot : slots_) {
    usage.completion_tokens += slot.output.completion_tokens();
    usage.cached_tokens += slot.output.cached_tokens();
  }
  usage.cached_tokens = std::min(usage.cached_tokens, usage.prompt_tokens);
  return usage;
}

void Generation::Complete() {
  const UsageCounts usage = Usage();
  if (setup_.request.stream) {
    if (setup_.request.include_usage) {
      SendEvent("", &usage);
    }
    exchange_->Event("", "[DONE]");
    exchange_->EndEvents();
    Close(200);
    return;
  }
  HttpResponse response;
  response.body = ResponsePrefix(head_);
  for (Slot& slot : slots_) {
    response.body += slot.output.index() > 0 ? "," : "";
    AppendChoice(head_, slot.output.Take(), &response.body);
  }
  response.body += "],\"usage\":";
  AppendUsage(usage, &response.body);
  if (head_.endpoint == Endpoint::kChat) {
    if (!slots_[0].output.prompt_logprobs_json().empty()) {
      response.body += ",\"prompt_logprobs\":" + slots_[0].output.prompt_logprobs_json();
    }
    if (setup_.request.return_token_ids) {
      response.body += ",\"prompt_token_ids\":";
      AppendIds(setup_.prompts[0].tokens, &response.body);
    }
  }
  response.body += '}';
  exchange_->Respond(std::move(response));
  Close(200);
}

void Generation::Fail(const ApiError& error) {
  if (closed_) {
    return;
  }
  if (stream_begun_) {
    exchange_->Event("error", ErrorBody(error));
    exchange_->AbortEvents();
  } else {
    HttpResponse response;
    response.status = error.http_status;
    response.body = ErrorBody(error);
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
  exchange_.reset();
  if (const auto on_done = std::exchange(setup_.on_done, nullptr)) {
    on_done(status);
  }
}

}  // namespace tandem::router
