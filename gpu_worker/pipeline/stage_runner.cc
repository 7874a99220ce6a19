#include "gpu_worker/pipeline/stage_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/exchange_rows.h"
#include "gpu_worker/ops/pseudo_sampling.h"
#include "gpu_worker/ops/rows_paced.h"
#include "gpu_worker/ops/sampling.h"

namespace tandem::gpu_worker {

StageRunner::StageRunner(const PipelineParts& parts, const StepInput& input,
                         const StepLayout& layout, TierStep* tier_step,
                         const std::optional<GraphShape>& shape)
    : parts_(parts),
      input_(input),
      layout_(layout),
      tier_step_(tier_step),
      stages_(BuildStageProgram(layout.program)),
      shape_(shape),
      times_(stages_.size()),
      begins_after_(stages_.size(), -1),
      events_(stages_.size()) {
  output_.sequences.resize(layout.outputs.size());
  for (size_t i = 0; i < layout.outputs.size(); ++i) {
    const SequenceWork& work = *layout.outputs[i];
    output_.sequences[i].sequence_id = work.sequence_id;
    if (work.num_prompt_logprobs >= 0) {
      output_.sequences[i].prompt_logprobs.resize(work.next_tokens.size());
    }
  }
  for (const LogitRow& row : layout.logit_rows) {
    logit_row_ids_.push_back(row.row);
    if (parts.rank == 0 && row.prompt_index < 0 && row.work->sample->constraint != nullptr) {
      row.work->sample->constraint->Begin(row.work->sample->output_tokens);
    }
  }
}

device::Stream& StageRunner::StreamOf(StageResource resource) const {
  device::Stream* own = nullptr;
  switch (resource) {
    case StageResource::kCompute:
      break;
    case StageResource::kTransfer:
      own = parts_.transfer.get();
      break;
    case StageResource::kMover:
      own = parts_.mover.get();
      break;
    case StageResource::kSwapper:
      own = parts_.swapper.get();
      break;
  }
  return own != nullptr ? *own : *parts_.compute;
}

absl::Status StageRunner::Launch() {
  if (!shape_.has_value()) {
    return LaunchStages(0, stages_.size());
  }
  const size_t first = stages_.front().kind == StageKind::kCopies ? 1 : 0;
  const size_t last = stages_.size() - 1;  // sampling, of what each request wants
  TANDEM_RETURN_IF_ERROR(LaunchStages(0, first));
  TANDEM_RETURN_IF_ERROR(LaunchGraph(first, last));
  return LaunchStages(last, stages_.size());
}

absl::Status StageRunner::LaunchStages(size_t first, size_t last) {
  range_begin_ = first;
  for (size_t i = first; i < last; ++i) {
    for (const int32_t earlier : stages_[i].depends_on) {
      const auto index = static_cast<size_t>(earlier);
      if (index >= first && &StreamOf(stages_[index].resource) != &StreamOf(stages_[i].resource)) {
        events_[index] = parts_.device->CreateEvent();
      }
    }
  }
  for (size_t i = first; i < last; ++i) {
    device::Stream& stream = StreamOf(stages_[i].resource);
    StampBegin(i, stream, WaitForOthers(stages_[i], stream));
    TANDEM_RETURN_IF_ERROR(LaunchStage(i, stream));
    stream.Stamp(&StampsOf(i).end_us);
    if (events_[i] != nullptr) {
      stream.Record(*events_[i]);
    }
  }
  return absl::OkStatus();
}

bool StageRunner::WaitForOthers(const Stage& stage, device::Stream& stream) {
  bool waits = false;
  for (const int32_t earlier : stage.depends_on) {
    const auto index = static_cast<size_t>(earlier);
    if (index >= range_begin_ && &StreamOf(stages_[index].resource) != &stream) {
      stream.WaitFor(*events_[index]);
      waits = true;
    }
  }
  return waits;
}

StageTimes& StageRunner::StampsOf(size_t stage) {
  return recorded_ != nullptr ? recorded_->times[stage - graph_begin_] : times_[stage];
}

// Without a wait a stage begins where the one before it on the stream ended: half of the stamps.
void StageRunner::StampBegin(size_t stage, device::Stream& stream, bool waits) {
  int32_t& before = newest_on_[&stream];  // 1 + its index
  if (waits || before == 0) {
    stream.Stamp(&StampsOf(stage).begin_us);
  } else {
    begins_after_[stage] = before - 1;
  }
  before = static_cast<int32_t>(stage) + 1;
}

absl::Status StageRunner::LaunchStage(size_t index, device::Stream& stream) {
  const Stage& stage = stages_[index];
  const SubBatchLayout& rows = layout_.sub_batch[stage.sub_batch];
  model::Decoder& decoder = *parts_.decoder;
  switch (stage.kind) {
    case StageKind::kCopies:
      LaunchCopies(stream);
      break;
    case StageKind::kEmbed:
      decoder.Embed(rows.rows, rows.tokens);
      break;
    case StageKind::kPre:
      decoder.Pre(stage.layer, rows.rows, rows.positions);
      ops::StoreKv(*parts_.context, decoder.qkv(), rows.store, parts_.GpuLayer(stage.layer));
      break;
    case StageKind::kSend:
      return LaunchSend(stage, stream);
    case StageKind::kAttend:
      LaunchAttend(index, stream);
      break;
    case StageKind::kMoveOut:
      for (const CpuPrefill& prefill : rows.cpu_prefill) {
        if (prefill.moves_later) {
          LaunchMoveOut(prefill, stage.layer, stream);
        }
      }
      break;
    case StageKind::kJoin:
      LaunchJoin(stage, stream);
      break;
    case StageKind::kPost:
      decoder.Post(stage.layer, rows.rows);
      break;
    case StageKind::kSample:
      LaunchSample(stream);
      break;
  }
  return absl::OkStatus();
}

// Both directions at once, where they have a stream each.
void StageRunner::LaunchCopies(device::Stream& stream) {
  device::Stream& loader = parts_.loader != nullptr ? *parts_.loader : stream;
  // OpenMP belongs to the compute stream's thread alone.
  const bool team = &stream == parts_.compute.get();
  for (const PoolCopy& copy : input_.copies) {
    TierCopy args{parts_.GpuLayer(0), copy.gpu_blocks, 0, copy.cpu_blocks};
    args.count = copy.num_tokens;
    args.use_team = team;
    args.to_cpu = copy.to_cpu;
    args.all_layers = true;
    CopyBetweenTiers(args, copy.to_cpu ? stream : loader);
  }
  if (&loader != &stream) {
    loaded_ = parts_.device->CreateEvent();
    loader.Record(*loaded_);
    stream.WaitFor(*loaded_);
  }
}

void StageRunner::CopyBetweenTiers(const TierCopy& copy, device::Stream& stream) {
  for (const CpuShard& shard : parts_.cpu_tier->shards()) {
    const HeadWindow window = parts_.WindowOf(shard);
    if (window.num_heads == 0) {
      continue;
    }
    ops::CopyKvArgs args;
    args.from = copy.device;
    args.from.first_head = window.device_head;
    args.from_table = copy.device_blocks;
    args.to = PipelineParts::CpuLayer(shard, copy.layer);
    args.to.first_head = window.shard_head;
    args.to_table = copy.cpu_blocks;
    args.to_host = true;
    if (!copy.to_cpu) {
      std::swap(args.from, args.to);
      std::swap(args.from_table, args.to_table);
      std::swap(args.from_host, args.to_host);
    }
    args.first = copy.first;
    args.count = copy.count;
    args.use_team = copy.use_team;
    if (copy.all_layers) {
      ops::CopySequenceKv(*parts_.context, stream, args);
    } else {
      ops::CopyKv(*parts_.context, stream, args);
    }
  }
}

void StageRunner::LaunchAttend(size_t index, device::Stream& stream) {
  const Stage& stage = stages_[index];
  const SubBatchLayout& rows = layout_.sub_batch[stage.sub_batch];
  ops::AttentionArgs args;
  args.qkv = parts_.decoder->qkv();
  args.pool = parts_.GpuLayer(stage.layer);
  args.scale = parts_.attention_scale;
  args.out = parts_.decoder->attention_out();
  if (!rows.prefill.empty() || !rows.cpu_prefill.empty()) {
    ops::PrefillAttention(*parts_.context, args, rows.prefill);
    for (const bool later : {false, true}) {  // those without a part of their own come first
      for (const CpuPrefill& prefill : rows.cpu_prefill) {
        if (prefill.moves_later == later) {
          LaunchCpuPrefill(prefill, stage.layer, stream);
        }
      }
    }
  }
  if (!rows.decode.empty()) {
    stream.Stamp(&StampsOf(index).split_us);
    ops::DecodeAttention(*parts_.context, args, rows.decode);
  }
}

void StageRunner::LaunchCpuPrefill(const CpuPrefill& prefill, int32_t layer,
                                   device::Stream& stream) {
  TierCopy copy{parts_.StagingLayer(), prefill.run.block_table, layer, prefill.cpu_blocks};
  copy.count = prefill.run.start_position;
  CopyBetweenTiers(copy, stream);

  ops::AttentionArgs args;
  args.qkv = parts_.decoder->qkv();
  args.pool = parts_.StagingLayer();
  args.scale = parts_.attention_scale;
  args.out = parts_.decoder->attention_out();
  const std::span<const ops::RowRun> run(&prefill.run, 1);
  // Rounded already, so that rows attend to what later chunks and decodes will find, however the
  // prompt is cut.
  ops::StoreKv(*parts_.context, args.qkv, run, args.pool, parts_.sizes.cpu.dtype);
  ops::PrefillAttention(*parts_.context, args, run);
  if (!prefill.moves_later) {
    LaunchMoveOut(prefill, layer, stream);
  }
}

void StageRunner::LaunchMoveOut(const CpuPrefill& prefill, int32_t layer, device::Stream& stream) {
  TierCopy copy{parts_.StagingLayer(), prefill.run.block_table, layer, prefill.cpu_blocks};
  copy.to_cpu = true;
  copy.first = prefill.run.start_position;
  copy.count = prefill.run.num_rows;
  copy.use_team = &stream == parts_.compute.get();
  CopyBetweenTiers(copy, stream);
}

absl::Status StageRunner::LaunchSend(const Stage& stage, device::Stream& stream) {
  // Embedding and the first layer's pre run while the worker takes the step.
  TANDEM_RETURN_IF_ERROR(BeginCpuStep());
  ops::SendRowsArgs args;
  args.qkv = parts_.decoder->qkv();
  args.row_ids = layout_.sub_batch[stage.sub_batch].cpu_rows;
  args.slot = stage.sub_batch;
  args.layer = stage.layer;
  for (const CpuShard& shard : parts_.cpu_tier->shards()) {
    const HeadWindow window = parts_.WindowOf(shard);
    if (window.num_heads > 0) {
      args.exchange = shard.exchange.get();
      args.first_kv_head = window.device_head;
      args.window = ExchangeWindowOf(window);
      ops::SendRows(*parts_.context, stream, args);
    }
  }
  return absl::OkStatus();
}

ops::ExchangeWindow StageRunner::ExchangeWindowOf(const HeadWindow& window) const {
  return parts_.num_ranks == 1
             ? ops::ExchangeWindow()
             : ops::ExchangeWindow{window.shard_head, window.num_heads, window.poster};
}

absl::Status StageRunner::BeginCpuStep() {
  TANDEM_RETURN_IF_ERROR(tier_step_->Begin());
  if (watches_joins_) {
    return absl::OkStatus();
  }
  watches_joins_ = true;
  for (const CpuShard& shard : parts_.cpu_tier->shards()) {
    for (int x = 0; x < exchange::kNumSlots; ++x) {
      if (layout_.program.has_cpu_rows[x] && parts_.WindowOf(shard).num_heads > 0) {
        ops::JoinRowsArgs args;
        args.exchange = shard.exchange.get();
        args.slot = x;
        args.layer = layout_.program.num_layers - 1;
        args.timeout_us = parts_.cpu_wait_timeout_us;
        ops::WatchJoins(*parts_.context, StreamOf(StageResource::kTransfer), args);
      }
    }
  }
  return absl::OkStatus();
}

void StageRunner::LaunchJoin(const Stage& stage, device::Stream& stream) {
  ops::JoinRowsArgs args;
  args.row_ids = layout_.sub_batch[stage.sub_batch].cpu_rows;
  args.slot = stage.sub_batch;
  args.layer = stage.layer;
  args.timeout_us = parts_.cpu_wait_timeout_us;
  args.width = parts_.decoder->shape().q_size();
  args.out = parts_.decoder->attention_out();
  for (const CpuShard& shard : parts_.cpu_tier->shards()) {
    const HeadWindow window = parts_.WindowOf(shard);
    if (window.num_heads > 0) {
      args.exchange = shard.exchange.get();
      args.window = ExchangeWindowOf(window);
      args.first_column = int64_t{window.device_head} * parts_.decoder->shape().group_size() *
                          parts_.decoder->shape().head_dim;
      ops::JoinRows(*parts_.context, stream, args);
    }
  }
}

void StageRunner::LaunchSample(device::Stream& stream) {
  const auto batch = static_cast<size_t>(parts_.decoder->max_logit_rows());
  for (size_t first = 0; first < logit_row_ids_.size(); first += batch) {
    const size_t count = std::min(batch, logit_row_ids_.size() - first);
    parts_.decoder->Logits(std::span(logit_row_ids_).subspan(first, count));
    if (parts_.rank > 0) {
      continue;
    }
    if (parts_.device->kind() == device::DeviceKind::kPaced) {
      PseudoSampleRows(first, count);
    } else if (parts_.chooser != nullptr) {
      ChooseOnDevice(first, count);
    } else {
      stream.Launch([this, first, count] {
        SampleRows(first, count);
        return absl::OkStatus();
      });
    }
  }
}

namespace {

absl::Status TakeAllowedTokens(SampleRequest* request) {
  if (request->constraint != nullptr) {
    const absl::StatusOr<std::span<const uint32_t>> allowed = request->constraint->Wait();
    if (!allowed.ok()) {
      return allowed.status();
    }
    request->allowed_tokens = *allowed;
  }
  return absl::OkStatus();
}

}  // namespace

// Grammars' masks are awaited here, while the device computes the layers that were queued before.
void StageRunner::ChooseOnDevice(size_t first, size_t count) {
  std::vector<SampleRequest> requests;
  requests.reserve(count);  // choices point into it
  std::vector<ops::TokenChoice> choices;
  for (const LogitRow& row : std::span(layout_.logit_rows).subspan(first, count)) {
    if (row.prompt_index >= 0) {
      choices.push_back({nullptr, row.work->next_tokens[static_cast<size_t>(row.prompt_index)],
                         row.work->num_prompt_logprobs});
      continue;
    }
    SampleRequest& request = requests.emplace_back(*row.work->sample);
    output_.sequences[static_cast<size_t>(row.output)].status = TakeAllowedTokens(&request);
    choices.push_back({&request, 0, request.num_logprobs});
  }
  const auto take = [this, first](size_t i, int32_t token, std::optional<TokenLogprobs> logprobs) {
    const LogitRow& row = layout_.logit_rows[first + i];
    SequenceOutput& output = output_.sequences[static_cast<size_t>(row.output)];
    if (row.prompt_index >= 0) {
      output.prompt_logprobs[static_cast<size_t>(row.prompt_index)] = *std::move(logprobs);
    } else if (output.status.ok()) {
      output.token = token;
      output.logprobs = std::move(logprobs);
    }
  };
  parts_.chooser->Choose(parts_.decoder->logits(), choices, take);
}

void StageRunner::SampleRows(size_t first, size_t count) {
  const auto vocab = static_cast<size_t>(parts_.decoder->shape().vocab_size);
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (size_t i = 0; i < count; ++i) {
    const LogitRow& row = layout_.logit_rows[first + i];
    const std::span<float> logits(parts_.decoder->logits() + i * vocab, vocab);
    SequenceOutput& output = output_.sequences[static_cast<size_t>(row.output)];
    if (row.prompt_index >= 0) {
      const auto index = static_cast<size_t>(row.prompt_index);
      output.prompt_logprobs[index] =
          LogprobsOf(logits, row.work->next_tokens[index], row.work->num_prompt_logprobs);
    } else {
      SampleRequest request = *row.work->sample;
      output.status = TakeAllowedTokens(&request);
      if (!output.status.ok()) {
        continue;
      }
      SampledToken sampled = SampleRow(logits, request);
      output.token = sampled.token;
      output.logprobs = std::move(sampled.logprobs);
    }
  }
}

void StageRunner::PseudoSampleRows(size_t first, size_t count) {
  const int32_t vocab = parts_.decoder->shape().vocab_size;
  ops::paced::Sample(*parts_.context, static_cast<int64_t>(count), vocab);
  for (size_t i = first; i < first + count; ++i) {
    const LogitRow& row = layout_.logit_rows[i];
    SequenceOutput& output = output_.sequences[static_cast<size_t>(row.output)];
    if (row.prompt_index >= 0) {
      const auto index = static_cast<size_t>(row.prompt_index);
      output.prompt_logprobs[index] =
          PseudoLogprobs(row.work->next_tokens[index], row.work->num_prompt_logprobs, vocab);
    } else {
      SampleRequest request = *row.work->sample;
      output.status = TakeAllowedTokens(&request);
      if (!output.status.ok()) {
        continue;
      }
      SampledToken sampled = PseudoSample(request, vocab);
      output.token = sampled.token;
      output.logprobs = std::move(sampled.logprobs);
    }
  }
}

StepOutput StageRunner::TakeOutput() {
  if (graph_ != nullptr) {
    std::copy(graph_->times.begin(), graph_->times.end(),
              times_.begin() + static_cast<ptrdiff_t>(graph_begin_));
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    StageTimes& time = times_[i];
    if (begins_after_[i] >= 0) {
      time.begin_us = times_[static_cast<size_t>(begins_after_[i])].end_us;
    }
    if (stages_[i].kind == StageKind::kAttend && time.split_us == 0) {
      time.split_us = time.end_us;  // no decodes
    }
  }
  output_.timings = SumStageTimes(stages_, times_, parts_.transfer == nullptr);
  for (const TraceSpan& span : CpuSpans()) {
    output_.timings.cpu_busy_us += span.end_us - span.begin_us;
  }
  return std::move(output_);
}

std::vector<TraceSpan> StageRunner::CpuSpans() const {
  std::vector<TraceSpan> spans;
  for (const Stage& stage : stages_) {
    if (stage.kind == StageKind::kJoin) {
      const exchange::LayerTiming timing =
          parts_.cpu_tier->layer_timing(stage.sub_batch, stage.layer);
      if (timing.end_us > timing.begin_us) {
        spans.push_back({"attention", TraceTrack::kCpu, stage.sub_batch, stage.layer,
                         static_cast<double>(timing.begin_us), static_cast<double>(timing.end_us)});
      }
    }
  }
  return spans;
}

std::vector<TraceSpan> StageRunner::Spans() const {
  std::vector<TraceSpan> spans = SpansOf(stages_, times_);
  const std::vector<TraceSpan> cpu = CpuSpans();
  spans.insert(spans.end(), cpu.begin(), cpu.end());
  return spans;
}

}  // namespace tandem::gpu_worker
