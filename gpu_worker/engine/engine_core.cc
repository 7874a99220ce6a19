#include "gpu_worker/engine/engine_core.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace tandem::gpu_worker {
namespace {

SchedulerConfig SchedulerConfigOf(const EngineOptions& options, const RunnerLimits& limits) {
  SchedulerConfig config;
  // Without a CPU pool auto still paces prefill on the device; the others have nothing to do.
  config.policy = limits.num_cpu_blocks > 0 || options.offload == OffloadPolicy::kAuto
                      ? options.offload
                      : OffloadPolicy::kOff;
  config.max_num_seqs = std::max(options.max_num_seqs, 1);
  config.max_num_batched_tokens = std::max(options.max_num_batched_tokens, 1);
  if (limits.max_batched_tokens > 0) {
    config.max_num_batched_tokens =
        std::min(config.max_num_batched_tokens, limits.max_batched_tokens);
  }
  config.saturating_rows = limits.saturating_rows;
  config.max_step_us = options.max_inter_token_latency_us;
  config.switches = options.switches;
  config.max_cpu_rows_per_slot = limits.max_cpu_rows_per_slot;
  config.max_cpu_table_entries_per_slot = limits.max_cpu_table_entries_per_slot;
  return config;
}

PoolState PoolStateOf(const BlockPool& pool, int64_t max_blocks_of_one) {
  PoolState state;
  state.total_blocks = pool.total_blocks();
  state.capacity_blocks =
      static_cast<int32_t>(std::min<int64_t>(pool.total_blocks(), max_blocks_of_one));
  state.free_blocks = pool.free_blocks();
  state.block_tokens = pool.block_tokens();
  return state;
}

SubmitResult Refuse(SubmitOutcome outcome, std::string message) {
  SubmitResult result;
  result.outcome = outcome;
  result.message = std::move(message);
  return result;
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, const RunnerLimits& limits,
                       std::shared_ptr<const CostModel> cost_model)
    : options_(options),
      limits_(limits),
      scheduler_(SchedulerConfigOf(options, limits), std::move(cost_model)),
      blocks_({limits.num_gpu_blocks, limits.gpu_block_tokens, limits.num_cpu_blocks,
               limits.cpu_block_tokens}),
      cpu_worker_(options.cpu_worker_away_limit_us, options.cpu_worker_lost_limit_us) {}

void EngineCore::ReplaceCostModel(std::shared_ptr<const CostModel> cost_model) {
  TANDEM_CHECK(!in_step_);
  scheduler_ = Scheduler(scheduler_.config(), std::move(cost_model));
  corrections_ = Corrections();
  steady_ = SteadyState();
}

SchedulerState EngineCore::PolicyState() const {
  SchedulerState state;
  const int64_t unlimited = std::numeric_limits<int32_t>::max();
  state.gpu = PoolStateOf(blocks_.pool(Tier::kGpu), unlimited);
  state.cpu = PoolStateOf(blocks_.pool(Tier::kCpu), limits_.max_cpu_table_entries_per_slot > 0
                                                        ? limits_.max_cpu_table_entries_per_slot
                                                        : unlimited);
  return state;
}

SchedulerState EngineCore::StateFor(int64_t now_us) {
  SchedulerState state = PolicyState();
  state.cpu_up = cpu_worker_.IsUsable(now_us);
  state.cpu_given_up = cpu_worker_.given_up();
  resident_.clear();
  Present present;
  for (const auto& [id, sequence] : sequences_) {
    present.Add(*sequence);
    if (sequence->view.tier != Tier::kNone) {
      resident_.push_back(&sequence->view);
    }
  }
  state.resident = resident_;
  state.waiting = waiting_;
  state.step_index = counters_.progress;
  state.current_mode = mode_;
  state.offload_pays = guard_.OffloadPays(now_us);
  if (std::exchange(guard_paused_, !state.offload_pays) && state.offload_pays) {
    ++counters_.offload_resumes;
  }
  state.corrections = corrections_;
  LearnConcurrency(state.gpu);
  state.mix = MixNow(present);
  StudyIfDue(&state);
  return state;
}

void EngineCore::Present::Add(const Sequence& sequence) {
  const auto prompt = static_cast<double>(sequence.prompt_size);
  ++sequences;
  prompt_tokens += prompt;
  prompt_squares += prompt * prompt;
  max_output += sequence.max_output;
  decodes += sequence.view.is_decode() ? 1 : 0;
}

// What has been learned, and what is known of the sequences that are here: their prompts, and how
// long their outputs are at least (those that decode, on average, since the last one ended) and
// at most. Else a load of another kind would be planned for like the one before it until its first
// sequences have ended.
WorkloadMix EngineCore::MixNow(const Present& present) const {
  constexpr double kFew = 16;
  WorkloadMix mix = mix_;
  if (present.sequences < 1) {
    return mix;
  }
  const double mean = present.prompt_tokens / present.sequences;
  const double variance = std::max(present.prompt_squares / present.sequences - mean * mean, 0.0);
  const double weight = std::min(present.sequences / kFew, 1.0);
  mix.prompt_tokens += weight * (mean - mix.prompt_tokens);
  mix.prompt_variance += weight * (variance - mix.prompt_variance);
  if (present.decodes > 0) {
    mix.output_tokens =
        std::max(mix.output_tokens, static_cast<double>(decoded_since_end_) / present.decodes);
  }
  mix.output_tokens =
      std::min(mix.output_tokens, std::max(present.max_output / present.sequences, 1.0));
  return mix;
}

// While the next sequence waits for room on the device: a running mean of those that hold it.
void EngineCore::LearnConcurrency(const PoolState& pool) {
  constexpr int64_t kMemory = 256;  // steps
  constexpr int64_t kLeast = 16;
  const auto on_device = static_cast<int32_t>(
      std::count_if(resident_.begin(), resident_.end(),
                    [](const SequenceView* view) { return view->tier == Tier::kGpu; }));
  if (waiting_.empty() || pool.free_blocks >= pool.BlocksFor(waiting_.front()->total_tokens + 1) +
                                                  pool.Watermark(on_device, kGpuSequencesABlock)) {
    return;
  }
  crowded_steps_ = std::min(crowded_steps_ + 1, kMemory);
  mean_on_device_ +=
      (static_cast<double>(on_device) - mean_on_device_) / static_cast<double>(crowded_steps_);
  mix_.device_sequences = crowded_steps_ >= kLeast ? mean_on_device_ : 0.0;
}

// The steady state changes slowly: it is looked at anew every few steps, and at once when the CPU
// tier comes or goes.
void EngineCore::StudyIfDue(SchedulerState* state) {
  if (scheduler_.config().policy != OffloadPolicy::kAuto) {
    return;
  }
  const bool has_cpu = state->cpu_up && !state->cpu_given_up;
  if (!steady_.is_known || has_cpu != studied_with_cpu_ ||
      counters_.progress - studied_at_ >= kStudyEverySteps) {
    steady_ = scheduler_.Study(*state);
    studied_with_cpu_ = has_cpu;
    studied_at_ = counters_.progress;
  }
  state->steady = steady_;
}

SubmitResult EngineCore::Refusal(const GenerationRequest& request) const {
  if (draining_) {
    return Refuse(SubmitOutcome::kDraining, "the worker is draining");
  }
  if (waiting_.size() >= static_cast<size_t>(std::max(options_.max_waiting, 0))) {
    return Refuse(SubmitOutcome::kQueueFull, "the waiting queue is full");
  }
  if (request.prompt_tokens.empty()) {
    return Refuse(SubmitOutcome::kInvalidToken, "the prompt has no tokens");
  }
  for (const auto* tokens : {&request.prompt_tokens, &request.resumed_tokens}) {
    for (const int32_t token : *tokens) {
      if (token < 0 || (limits_.vocab_size > 0 && token >= limits_.vocab_size)) {
        return Refuse(SubmitOutcome::kInvalidToken, "token id " + std::to_string(token) +
                                                        " is not in the vocabulary of " +
                                                        std::to_string(limits_.vocab_size));
      }
    }
  }
  const auto prompt = static_cast<int64_t>(request.prompt_tokens.size());
  const auto output = std::max<int64_t>({int64_t{request.max_tokens}, int64_t{1},
                                         static_cast<int64_t>(request.resumed_tokens.size())});
  if (options_.max_model_len > 0 && prompt + output > options_.max_model_len) {
    return Refuse(SubmitOutcome::kTooLong, "the prompt's " + std::to_string(prompt) +
                                               " tokens and " + std::to_string(output) +
                                               " of output exceed the model's length of " +
                                               std::to_string(options_.max_model_len));
  }
  const int64_t known = prompt + static_cast<int64_t>(request.resumed_tokens.size());
  if (!scheduler_.CanEverHold(PolicyState(), known + 1)) {
    return Refuse(SubmitOutcome::kNeverFits, "the prompt's " + std::to_string(known) +
                                                 " tokens fit no KV cache pool of this worker");
  }
  return SubmitResult();
}

SubmitResult EngineCore::Submit(GenerationRequest request, int64_t now_us) {
  SubmitResult result = Refusal(request);
  if (result.outcome != SubmitOutcome::kAccepted) {
    return result;
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(request.prompt_tokens);
  sequence->prompt_size = static_cast<int32_t>(sequence->tokens.size());
  sequence->tokens.insert(sequence->tokens.end(), request.resumed_tokens.begin(),
                          request.resumed_tokens.end());
  sequence->stop_tokens = request.stop_token_ids;
  if (!request.ignore_eos) {
    sequence->stop_tokens.insert(sequence->stop_tokens.end(), options_.eos_token_ids.begin(),
                                 options_.eos_token_ids.end());
  }
  if (request.constraint != nullptr) {
    sequence->end_tokens = options_.eos_token_ids;
  }
  const int32_t room = options_.max_model_len > 0 ? options_.max_model_len - sequence->prompt_size
                                                  : std::numeric_limits<int32_t>::max();
  sequence->max_output = request.max_tokens > 0 ? std::min(request.max_tokens, room) : room;
  sequence->arrival_us = now_us;
  sequence->request = std::move(request);
  SequenceView& view = sequence->view;
  view.id = next_id_++;
  view.arrival = arrivals_++;
  view.priority = sequence->request.priority;
  view.total_tokens = static_cast<int64_t>(sequence->tokens.size());
  view.chunk_barrier = sequence->wants_prompt_logprobs() ? sequence->prompt_size : 0;
  const OffloadPolicy policy = scheduler_.config().policy;
  if (policy == OffloadPolicy::kUnified || policy == OffloadPolicy::kAsymmetric) {
    view.home = view.arrival % 2 == 1 ? Tier::kCpu : Tier::kGpu;
  } else if (policy != OffloadPolicy::kAuto && policy != OffloadPolicy::kNeo) {
    view.home = policy == OffloadPolicy::kAllCpu ? Tier::kCpu : Tier::kGpu;
  }
  result.sequence_id = view.id;
  const FinishReason finish =
      sequence->output_size() > 0 ? FinishAfterNewestToken(*sequence) : FinishReason::kNone;
  if (finish != FinishReason::kNone) {  // it had ended before it was resumed
    GenerationUpdate update = MakeUpdate(*sequence);
    update.finish = finish;
    if (finish == FinishReason::kStop) {
      update.stop_token = sequence->tokens.back();
    }
    updates_.emplace_back(view.id, std::move(update));
    return result;
  }
  has_deadlines_ |= sequence->request.deadline_us > 0;
  has_priorities_ |= view.priority != 0;
  LearnMix(*sequence, false);
  come_ = std::min(come_ + 1, kMostReplacing);
  InsertWaiting(sequence.get());
  sequences_[view.id] = std::move(sequence);
  return result;
}

void EngineCore::InsertWaiting(Sequence* sequence) {
  const SequenceView* view = &sequence->view;
  const auto place = std::lower_bound(
      waiting_.begin(), waiting_.end(), view,
      [](const SequenceView* a, const SequenceView* b) { return IsOlder(*a, *b); });
  waiting_.insert(place, view);
}

void EngineCore::RemoveWaiting(const Sequence& sequence) {
  const auto place = std::lower_bound(
      waiting_.begin(), waiting_.end(), &sequence.view,
      [](const SequenceView* a, const SequenceView* b) { return IsOlder(*a, *b); });
  TANDEM_CHECK(place != waiting_.end() && *place == &sequence.view);
  waiting_.erase(place);
}

Sequence* EngineCore::Find(uint64_t sequence_id) {
  const auto it = sequences_.find(sequence_id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void EngineCore::Remove(uint64_t sequence_id) {
  const auto it = sequences_.find(sequence_id);
  TANDEM_CHECK(it != sequences_.end() && !it->second->in_step);
  if (it->second->view.tier == Tier::kNone) {
    RemoveWaiting(*it->second);
  } else {
    blocks_.Release(sequence_id);
  }
  sequences_.erase(it);
  decoded_since_end_ = 0;
}

void EngineCore::Cancel(uint64_t sequence_id) {
  Sequence* sequence = Find(sequence_id);
  if (sequence == nullptr) {
    return;
  }
  if (sequence->in_step) {
    sequence->is_cancelled = true;
  } else {
    Remove(sequence_id);
  }
}

void EngineCore::EndWithError(Sequence* sequence, const absl::Status& error) {
  if (!sequence->is_cancelled) {
    GenerationUpdate update = MakeUpdate(*sequence);
    update.finish = FinishReason::kAbort;
    update.error = error;
    updates_.emplace_back(sequence->id(), std::move(update));
  }
  Remove(sequence->id());
}

void EngineCore::EndAll(const absl::Status& reason) {
  TANDEM_CHECK(!in_step_);
  while (!sequences_.empty()) {
    EndWithError(sequences_.begin()->second.get(), reason);
  }
}

void EngineCore::Recompute(Sequence* sequence) {
  blocks_.Release(sequence->id());
  ForgetCache(sequence);
  InsertWaiting(sequence);
  ++counters_.recomputes;
}

void EngineCore::ExpireDeadlines(int64_t now_us) {
  if (!has_deadlines_) {
    return;
  }
  std::vector<Sequence*> late;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->request.deadline_us > 0 && now_us >= sequence->request.deadline_us) {
      late.push_back(sequence.get());
    }
  }
  for (Sequence* sequence : late) {
    EndWithError(sequence, absl::DeadlineExceededError("the request's deadline passed"));
  }
}

void EngineCore::AgeWaiting(int64_t now_us) {
  if (!has_priorities_ || waiting_.empty()) {
    return;
  }
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  std::vector<Sequence*> aged;
  for (const SequenceView* view : waiting_) {
    Sequence* sequence = Find(view->id);
    if (view->priority != kFirst && now_us - sequence->arrival_us >= kPriorityAgeingUs) {
      aged.push_back(sequence);
    }
  }
  for (Sequence* sequence : aged) {
    RemoveWaiting(*sequence);
    sequence->view.priority = kFirst;
    InsertWaiting(sequence);
  }
}

// What the device can hold is recomputed there. The rest keeps its KV in the CPU pool, which
// outlives the worker, and waits for the next one.
void EngineCore::GiveUpCpuWorker() {
  SchedulerState state = PolicyState();
  state.cpu_given_up = true;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->view.tier == Tier::kCpu &&
        scheduler_.CanEverHold(state, sequence->view.total_tokens + 1)) {
      Recompute(sequence.get());
    }
  }
}

// When the CPU tier is lost for good some sequences have no place any more; their clients shall not
// wait for ever.
void EngineCore::EndImpossible(int64_t now_us) {
  if (!cpu_worker_.IsLost(now_us)) {
    return;
  }
  SchedulerState state = PolicyState();
  state.cpu_given_up = true;
  std::vector<Sequence*> impossible;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->view.tier != Tier::kGpu &&
        !scheduler_.CanEverHold(state, sequence->view.total_tokens)) {
      impossible.push_back(sequence.get());
    }
  }
  for (Sequence* sequence : impossible) {
    EndWithError(sequence, absl::UnavailableError(
                               "the CPU attention worker is away and the sequence does not fit "
                               "the device's KV cache"));
  }
}

std::vector<std::pair<uint64_t, GenerationUpdate>> EngineCore::TakeUpdates() {
  return std::exchange(updates_, {});
}

int64_t EngineCore::NextWakeUs(int64_t now_us) const {
  if (sequences_.empty()) {
    return 0;
  }
  int64_t wake_us = uses_cpu_tier() ? cpu_worker_.NextEventUs(now_us) : 0;
  if (has_deadlines_) {
    for (const auto& [id, sequence] : sequences_) {
      const int64_t deadline_us = sequence->request.deadline_us;
      if (deadline_us > 0 && (wake_us == 0 || deadline_us < wake_us)) {
        wake_us = deadline_us;
      }
    }
  }
  return wake_us;
}

EngineSnapshot EngineCore::snapshot(int64_t now_us) const {
  EngineSnapshot out = counters_;
  out.waiting = static_cast<int32_t>(waiting_.size());
  for (const auto& [id, sequence] : sequences_) {
    const SequenceView& view = sequence->view;
    if (view.tier == Tier::kNone) {
      continue;
    }
    if (!view.is_decode()) {
      ++out.prefill;
    } else {
      ++(view.tier == Tier::kGpu ? out.gpu_decode : out.cpu_decode);
    }
  }
  out.moving = in_step_ ? static_cast<int32_t>(plan_.moves.size()) : 0;
  out.gpu_blocks_free = blocks_.pool(Tier::kGpu).free_blocks();
  out.gpu_blocks_used = blocks_.pool(Tier::kGpu).used_blocks();
  out.cpu_blocks_free = blocks_.pool(Tier::kCpu).free_blocks();
  out.cpu_blocks_used = blocks_.pool(Tier::kCpu).used_blocks();
  out.cpu_attention_up = cpu_worker_.is_up();
  out.offload_enabled = uses_cpu_tier() && !cpu_worker_.given_up() && guard_.OffloadPays(now_us);
  out.draining = draining_;
  return out;
}

CoreSnapshot EngineCore::Books() const {
  CoreSnapshot books;
  books.kv = blocks_.Snapshot();
  for (const auto& [id, sequence] : sequences_) {
    books.sequences.push_back(sequence->view);
  }
  for (const SequenceView* view : waiting_) {
    books.waiting.push_back(view->id);
  }
  books.step_index = counters_.progress;
  return books;
}

}  // namespace tandem::gpu_worker
