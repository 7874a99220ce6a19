#include <algorithm>

#include "common/base/check.h"
#include "gpu_worker/engine/engine_core.h"

namespace tandem::gpu_worker {

const StepInput* EngineCore::PlanStep(int64_t now_us) {
  TANDEM_CHECK(!in_step_);
  ExpireDeadlines(now_us);
  if (uses_cpu_tier() && cpu_worker_.GiveUpIfDue(now_us)) {
    GiveUpCpuWorker();
  }
  EndImpossible(now_us);
  AgeWaiting(now_us);
  if (sequences_.empty() || !MakePlan(now_us)) {
    return nullptr;
  }
  in_step_ = true;
  step_started_us_ = now_us;
  ReserveBlocks();
  BuildInput();
  return &input_;
}

// Recomputing needs no step: it is done as soon as it is planned, and if nothing else came out the
// plan is made again with the room it gave.
bool EngineCore::MakePlan(int64_t now_us) {
  for (int i = 0; i < kMaxPlansPerStep; ++i) {
    plan_ = scheduler_.Plan(StateFor(now_us), now_us);
    for (const uint64_t id : plan_.recompute) {
      Recompute(Find(id));
    }
    if (plan_.has_step()) {
      return true;
    }
    if (plan_.recompute.empty()) {
      return false;
    }
  }
  return false;
}

void EngineCore::ReserveBlocks() {
  blocks_.BeginStep();
  admitted_.clear();
  for (const PlannedMove& move : plan_.moves) {
    Sequence* sequence = Find(move.sequence_id);
    sequence->in_step = true;
    TANDEM_CHECK(blocks_.ReserveMove(move.sequence_id, move.to_cpu ? Tier::kCpu : Tier::kGpu,
                                     sequence->view.tokens_to_hold()));
  }
  for (const auto& sub_batch : plan_.sub_batch) {
    for (const PlannedWork& work : sub_batch) {
      Sequence* sequence = Find(work.sequence_id);
      SequenceView& view = sequence->view;
      if (view.tier == Tier::kNone) {
        RemoveWaiting(*sequence);
        view.tier = work.tier;
        view.prefill_end = view.total_tokens;
        admitted_.push_back(view.id);
      }
      sequence->in_step = true;
      TANDEM_CHECK(blocks_.Reserve(view.id, work.tier, view.tokens_to_hold()));
    }
  }
}

void EngineCore::BuildInput() {
  input_.epoch += 1;
  input_.mode = plan_.mode;
  input_.order = plan_.order;
  input_.copies.clear();
  for (const PlannedMove& move : plan_.moves) {
    const auto from = blocks_.table(move.sequence_id);
    const auto to = blocks_.destination_table(move.sequence_id);
    PoolCopy copy;
    copy.to_cpu = move.to_cpu;
    copy.gpu_blocks = move.to_cpu ? from : to;
    copy.cpu_blocks = move.to_cpu ? to : from;
    copy.num_tokens = Find(move.sequence_id)->view.cached_tokens;
    input_.copies.push_back(copy);
  }
  for (int x = 0; x < 2; ++x) {
    input_.sub_batch[x].clear();
    for (const PlannedWork& work : plan_.sub_batch[x]) {
      input_.sub_batch[x].push_back(MakeWork(work, *Find(work.sequence_id)));
    }
  }
}

SequenceWork EngineCore::MakeWork(const PlannedWork& planned, const Sequence& sequence) const {
  const SequenceView& view = sequence.view;
  SequenceWork work;
  work.sequence_id = view.id;
  work.request_id = sequence.request.request_id;
  const bool on_gpu = planned.tier == Tier::kGpu;
  work.kind = planned.is_prefill ? (on_gpu ? WorkKind::kPrefillGpu : WorkKind::kPrefillCpu)
                                 : (on_gpu ? WorkKind::kDecodeGpu : WorkKind::kDecodeCpu);
  const auto start = static_cast<size_t>(view.cached_tokens);
  const auto count = static_cast<size_t>(planned.num_tokens);
  work.tokens = std::span(sequence.tokens).subspan(start, count);
  work.start_position = static_cast<int32_t>(start);
  const auto table =
      view.tier == planned.tier ? blocks_.table(view.id) : blocks_.destination_table(view.id);
  const int32_t blocks = blocks_.pool(planned.tier).BlocksFor(static_cast<int64_t>(start + count));
  TANDEM_CHECK(static_cast<size_t>(blocks) <= table.size());
  work.block_table = table.first(static_cast<size_t>(blocks));
  if (start + count == sequence.tokens.size()) {
    SampleRequest sample;
    sample.params = &sequence.request.sampling;
    sample.prompt_tokens = sequence.prompt();
    sample.output_tokens = sequence.output();
    if (!sequence.may_stop()) {
      sample.forbidden_tokens = sequence.stop_tokens;
    } else if (sequence.request.ignore_eos) {
      sample.forbidden_tokens =
          sequence.end_tokens;  // unless the constraint lets nothing else come
    }
    sample.num_logprobs = sequence.request.num_logprobs;
    sample.constraint = sequence.request.constraint.get();
    work.sample = sample;
  }
  if (planned.is_prefill && sequence.wants_prompt_logprobs()) {
    AddPromptLogprobs(sequence, &work);
  }
  return work;
}

// Chunks end at the prompt's end (chunk_barrier), so a chunk lies in the prompt or behind it.
void EngineCore::AddPromptLogprobs(const Sequence& sequence, SequenceWork* work) const {
  const int32_t first = work->start_position + 1;
  const int32_t last = std::min(work->start_position + static_cast<int32_t>(work->tokens.size()),
                                sequence.prompt_size - 1);
  if (first > last) {
    return;
  }
  work->num_prompt_logprobs = sequence.request.num_prompt_logprobs;
  work->next_tokens =
      std::span(sequence.tokens)
          .subspan(static_cast<size_t>(first), static_cast<size_t>(last - first + 1));
}

bool EngineCore::StepUsesCpu() const {
  const auto on_cpu = [](const PlannedWork& work) { return work.tier == Tier::kCpu; };
  return !plan_.moves.empty() ||
         std::any_of(plan_.sub_batch[0].begin(), plan_.sub_batch[0].end(), on_cpu) ||
         std::any_of(plan_.sub_batch[1].begin(), plan_.sub_batch[1].end(), on_cpu);
}

std::vector<uint64_t> EngineCore::SequencesOfStep() const {
  std::vector<uint64_t> ids;
  for (const auto& sub_batch : plan_.sub_batch) {
    for (const PlannedWork& work : sub_batch) {
      ids.push_back(work.sequence_id);
    }
  }
  for (const PlannedMove& move : plan_.moves) {
    ids.push_back(move.sequence_id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// After commit or rollback of the blocks: the step's sequences are free again, and those that were
// cancelled meanwhile go.
void EngineCore::FinishStep() {
  in_step_ = false;
  for (const uint64_t id : SequencesOfStep()) {
    Sequence* sequence = Find(id);
    if (sequence == nullptr) {
      continue;
    }
    sequence->in_step = false;
    sequence->view.blocks = blocks_.blocks_of(id);
    if (sequence->is_cancelled) {
      Remove(id);
    }
  }
}

void EngineCore::Commit(const StepOutput& output, int64_t now_us) {
  TANDEM_CHECK(in_step_);
  blocks_.CommitStep();
  ++counters_.progress;
  ++counters_.steps[static_cast<int>(plan_.mode)];
  counters_.graph_steps += output.is_graph ? 1 : 0;
  counters_.graph_captures += output.is_captured ? 1 : 0;
  unexplained_aborts_ = 0;
  mode_ = plan_.mode;
  if (StepUsesCpu()) {
    cpu_worker_.OnStepDone();
  }
  CommitMoves(now_us);
  FinishStep();
  absl::flat_hash_map<uint64_t, const SequenceOutput*> outputs;
  for (const SequenceOutput& sequence : output.sequences) {
    outputs[sequence.sequence_id] = &sequence;
  }
  for (const auto& sub_batch : plan_.sub_batch) {
    for (const PlannedWork& work : sub_batch) {
      const auto it = outputs.find(work.sequence_id);
      CommitWork(work, it == outputs.end() ? nullptr : it->second);
    }
  }
  Learn(output, now_us);
}

void EngineCore::CommitMoves(int64_t now_us) {
  for (const PlannedMove& move : plan_.moves) {
    SequenceView& view = Find(move.sequence_id)->view;
    view.tier = move.to_cpu ? Tier::kCpu : Tier::kGpu;
    view.last_move_us = now_us;
    // A move is no reason to count as passed over.
    view.last_progress_step = counters_.progress;
    ++(move.to_cpu ? counters_.swap_outs : counters_.swap_ins);
  }
}

void EngineCore::CommitWork(const PlannedWork& planned, const SequenceOutput* output) {
  Sequence* sequence = Find(planned.sequence_id);
  if (sequence == nullptr) {
    return;  // cancelled during the step
  }
  SequenceView& view = sequence->view;
  view.cached_tokens += planned.num_tokens;
  view.last_progress_step = counters_.progress;
  if (!planned.is_prefill) {
    ++(planned.tier == Tier::kGpu ? counters_.decode_tokens_gpu : counters_.decode_tokens_cpu);
    ++decoded_since_end_;
    counters_.cpu_context_tokens +=
        planned.tier == Tier::kCpu ? static_cast<uint64_t>(view.cached_tokens) : 0;
  }
  if (output != nullptr) {
    sequence->prompt_logprobs.insert(sequence->prompt_logprobs.end(),
                                     output->prompt_logprobs.begin(),
                                     output->prompt_logprobs.end());
  }
  if (view.cached_tokens < view.total_tokens) {
    return;
  }
  if (output != nullptr && !output->status.ok()) {
    EndWithError(sequence, output->status);
    return;
  }
  if (output == nullptr || !output->token.has_value()) {
    EndWithError(sequence, absl::InternalError("the step returned no token for the sequence"));
    return;
  }
  Publish(sequence, *output);
}

void EngineCore::Publish(Sequence* sequence, const SequenceOutput& output) {
  SequenceView& view = sequence->view;
  sequence->tokens.push_back(*output.token);
  view.total_tokens = static_cast<int64_t>(sequence->tokens.size());
  ++counters_.generated_tokens;
  GenerationUpdate update = MakeUpdate(*sequence);
  update.tokens.push_back(*output.token);
  if (sequence->request.num_logprobs >= 0 && output.logprobs.has_value()) {
    update.logprobs.push_back(*output.logprobs);
  }
  if (!sequence->prompt_is_reported) {
    update.prompt_logprobs = std::move(sequence->prompt_logprobs);
    sequence->prompt_logprobs.clear();
    sequence->prompt_is_reported = true;
    view.chunk_barrier = 0;
    counters_.prompt_tokens += static_cast<uint64_t>(sequence->prompt_size);
  }
  update.finish = FinishAfterNewestToken(*sequence);
  if (update.finish == FinishReason::kStop) {
    update.stop_token = *output.token;
  }
  if (update.finish == FinishReason::kNone &&
      !scheduler_.CanEverHold(PolicyState(), view.total_tokens)) {
    update.finish = FinishReason::kLength;  // it has outgrown both pools
  }
  const bool is_done = update.finish != FinishReason::kNone;
  updates_.emplace_back(view.id, std::move(update));
  if (is_done) {
    LearnMix(*sequence, true);
    Remove(view.id);
  }
}

// Running means of the lengths; until the first sequence ended, of what new ones ask for.
void EngineCore::LearnMix(const Sequence& sequence, bool has_ended) {
  constexpr int64_t kMemory = 64;          // sequences
  constexpr double kLongestAssumed = 256;  // of output that was only allowed
  if (mix_is_of_ended_ && !has_ended) {
    return;
  }
  if (has_ended && !mix_is_of_ended_) {
    mix_is_of_ended_ = true;
    mixed_ = 4;  // the first to end are the shortest
    come_ = 0;
  }
  const double output = has_ended
                            ? static_cast<double>(sequence.output_size())
                            : std::min(static_cast<double>(sequence.max_output), kLongestAssumed);
  mixed_ = std::min(mixed_ + 1, kMemory);
  const double weight = 1.0 / static_cast<double>(mixed_);
  if (has_ended) {
    const bool is_replaced = come_ > 0;
    come_ -= is_replaced ? 1 : 0;
    mix_.replaced += weight * ((is_replaced ? 1.0 : 0.0) - mix_.replaced);
  }
  const double off = static_cast<double>(sequence.prompt_size) - mix_.prompt_tokens;
  mix_.prompt_tokens += weight * off;
  mix_.prompt_variance += weight * ((1 - weight) * off * off - mix_.prompt_variance);
  mix_.output_tokens += weight * (std::max(output, 1.0) - mix_.output_tokens);
}

void EngineCore::Learn(const StepOutput& output, int64_t now_us) {
  observation_ = StepObservation();
  observation_.mode = plan_.mode;
  observation_.duration_us = static_cast<double>(now_us - step_started_us_);
  observation_.measured_over_predicted =
      UpdateCorrections(plan_.predicted, output.timings, &corrections_);
  if (scheduler_.config().policy == OffloadPolicy::kAuto && plan_.mode != StepMode::kGpuOnly &&
      output.timings.total_us > 0) {
    const bool paused =
        guard_.Observe(plan_.value / output.timings.total_us, plan_.gpu_only_value_per_us, now_us);
    counters_.offload_pauses += paused ? 1 : 0;
  }
}

void EngineCore::Abort(const absl::Status& reason, int64_t now_us) {
  TANDEM_CHECK(in_step_);
  blocks_.RollbackStep();
  ++counters_.progress;
  const bool used_cpu = StepUsesCpu();
  bool may_repeat = absl::IsUnavailable(reason);
  if (may_repeat && used_cpu) {
    ++counters_.aborted_steps_cpu_worker_lost;
    cpu_worker_.OnStepFailed(now_us);
  } else {
    ++counters_.aborted_steps_other;
    may_repeat = may_repeat && ++unexplained_aborts_ < kMaxUnexplainedAborts;
  }
  for (const uint64_t id : admitted_) {
    Sequence* sequence = Find(id);
    ForgetCache(sequence);
    InsertWaiting(sequence);
  }
  const std::vector<uint64_t> ids = SequencesOfStep();
  FinishStep();
  if (may_repeat) {
    return;
  }
  unexplained_aborts_ = 0;
  for (const uint64_t id : ids) {
    if (Sequence* sequence = Find(id); sequence != nullptr) {
      EndWithError(sequence, reason);
    }
  }
}

}  // namespace tandem::gpu_worker
