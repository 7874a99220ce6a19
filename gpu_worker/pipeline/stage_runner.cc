#include "gpu_worker/pipeline/stage_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/rows.h"
#include "gpu_worker/ops/sampling.h"

namespace tandem::gpu_worker {
namespace {

// Rows of Q, K and V to the exchange's slot, then the bell.
absl::Status SendRows(const PipelineParts& parts, const SubBatchLayout& rows, int slot,
                      int32_t layer) {
  const ModelShape& shape = parts.decoder->shape();
  ops::PackRowsArgs pack;
  pack.in = parts.decoder->qkv().data;
  pack.in_width = shape.q_size() + 2 * shape.kv_size();
  pack.row_ids = rows.cpu_rows;
  pack.width = shape.q_size();
  pack.out = parts.exchange->q(slot);
  ops::PackRows(*parts.context, pack);
  pack.first_column = shape.q_size();
  pack.width = shape.kv_size();
  pack.out = parts.exchange->k(slot);
  ops::PackRows(*parts.context, pack);
  pack.first_column = shape.q_size() + shape.kv_size();
  pack.out = parts.exchange->v(slot);
  ops::PackRows(*parts.context, pack);
  parts.exchange->Post(slot, layer);
  return absl::OkStatus();
}

absl::Status JoinRows(const PipelineParts& parts, const SubBatchLayout& rows, int slot,
                      int32_t layer) {
  switch (parts.exchange->WaitDone(slot, layer, parts.cpu_wait_timeout_us)) {
    case exchange::WaitResult::kDone:
      break;
    case exchange::WaitResult::kReleased:
      return absl::UnavailableError("the CPU attention worker was lost during the step");
    case exchange::WaitResult::kTimedOut:
      return absl::UnavailableError(absl::StrCat("the CPU attention worker did not answer layer ",
                                                 layer, " within ", parts.cpu_wait_timeout_us,
                                                 " us"));
  }
  const auto row_bytes = static_cast<size_t>(parts.decoder->shape().q_size() *
                                             DTypeBytes(parts.context->compute_dtype()));
  const std::byte* from = parts.exchange->o(slot);
  for (size_t i = 0; i < rows.cpu_rows.size(); ++i) {
    std::memcpy(parts.decoder->attention_out() + static_cast<size_t>(rows.cpu_rows[i]) * row_bytes,
                from + i * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

StageRunner::StageRunner(const PipelineParts& parts, const StepInput& input,
                         const StepLayout& layout)
    : parts_(parts), input_(input), layout_(layout) {
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
  }
}

device::Stream& StageRunner::StreamOf(StageResource resource) const {
  const bool transfer = resource == StageResource::kTransfer && parts_.transfer != nullptr;
  return transfer ? *parts_.transfer : *parts_.compute;
}

absl::Status StageRunner::Launch() {
  const std::vector<Stage> stages = BuildStageProgram(layout_.program);
  events_.resize(stages.size());
  for (const Stage& stage : stages) {
    for (const int32_t earlier : stage.depends_on) {
      const auto index = static_cast<size_t>(earlier);
      if (&StreamOf(stages[index].resource) != &StreamOf(stage.resource)) {
        events_[index] = parts_.device->CreateEvent();
      }
    }
  }
  clocks_[0].Start(*parts_.compute);
  if (parts_.transfer != nullptr) {
    clocks_[1].Start(*parts_.transfer);
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    device::Stream& stream = StreamOf(stages[i].resource);
    for (const int32_t earlier : stages[i].depends_on) {
      if (&StreamOf(stages[static_cast<size_t>(earlier)].resource) != &stream) {
        stream.WaitFor(*events_[static_cast<size_t>(earlier)]);
      }
    }
    TANDEM_RETURN_IF_ERROR(LaunchStage(stages[i], stream));
    if (events_[i] != nullptr) {
      stream.Record(*events_[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status StageRunner::LaunchStage(const Stage& stage, device::Stream& stream) {
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
      ClockOf(stream).Mark(stream, Term::kLinear);
      break;
    case StageKind::kSend:
      return LaunchSend(stage, stream);
    case StageKind::kAttend:
      LaunchAttend(stage, stream);
      break;
    case StageKind::kJoin:
      LaunchJoin(stage, stream);
      break;
    case StageKind::kPost:
      decoder.Post(stage.layer, rows.rows);
      ClockOf(stream).Mark(stream, Term::kLinear);
      break;
    case StageKind::kSample:
      LaunchSample(stream);
      break;
  }
  return absl::OkStatus();
}

void StageRunner::LaunchCopies(device::Stream& stream) {
  // OpenMP belongs to the compute stream's thread alone.
  const bool team = &stream == parts_.compute.get();
  for (const PoolCopy& copy : input_.copies) {
    for (int32_t layer = 0; layer < parts_.sizes.gpu.num_layers; ++layer) {
      ops::CopyKvArgs args;
      args.from = copy.to_cpu ? parts_.GpuLayer(layer) : parts_.CpuLayer(layer);
      args.from_table = copy.to_cpu ? copy.gpu_blocks : copy.cpu_blocks;
      args.to = copy.to_cpu ? parts_.CpuLayer(layer) : parts_.GpuLayer(layer);
      args.to_table = copy.to_cpu ? copy.cpu_blocks : copy.gpu_blocks;
      args.count = copy.num_tokens;
      args.use_team = team;
      ops::CopyKv(stream, args);
    }
  }
  ClockOf(stream).Mark(stream, Term::kCopies);
}

void StageRunner::LaunchAttend(const Stage& stage, device::Stream& stream) {
  const SubBatchLayout& rows = layout_.sub_batch[stage.sub_batch];
  ops::AttentionArgs args;
  args.qkv = parts_.decoder->qkv();
  args.pool = parts_.GpuLayer(stage.layer);
  args.scale = parts_.attention_scale;
  args.out = parts_.decoder->attention_out();
  if (!rows.prefill.empty() || !rows.cpu_prefill.empty()) {
    ops::PrefillAttention(*parts_.context, args, rows.prefill);
    for (const CpuPrefill& prefill : rows.cpu_prefill) {
      LaunchCpuPrefill(prefill, stage.layer, stream);
    }
    ClockOf(stream).Mark(stream, Term::kPrefill);
  }
  if (!rows.decode.empty()) {
    ops::DecodeAttention(*parts_.context, args, rows.decode);
    ClockOf(stream).Mark(stream, Term::kGpuDecode);
  }
}

void StageRunner::LaunchCpuPrefill(const CpuPrefill& prefill, int32_t layer,
                                   device::Stream& stream) {
  ops::CopyKvArgs copy;
  copy.from = parts_.CpuLayer(layer);
  copy.from_table = prefill.cpu_blocks;
  copy.to = parts_.StagingLayer();
  copy.to_table = prefill.run.block_table;
  copy.count = prefill.run.start_position;
  ops::CopyKv(stream, copy);

  ops::AttentionArgs args;
  args.qkv = parts_.decoder->qkv();
  args.pool = parts_.StagingLayer();
  args.scale = parts_.attention_scale;
  args.out = parts_.decoder->attention_out();
  const std::span<const ops::RowRun> run(&prefill.run, 1);
  ops::StoreKv(*parts_.context, args.qkv, run, args.pool);
  ops::PrefillAttention(*parts_.context, args, run);

  std::swap(copy.from, copy.to);
  std::swap(copy.from_table, copy.to_table);
  copy.first = prefill.run.start_position;
  copy.count = prefill.run.num_rows;
  ops::CopyKv(stream, copy);
}

absl::Status StageRunner::LaunchSend(const Stage& stage, device::Stream& stream) {
  if (!began_) {
    // Embedding and the first layer's pre run while the worker takes the step.
    began_ = true;
    TANDEM_RETURN_IF_ERROR(parts_.exchange->BeginStep(
        input_.epoch, layout_.sub_batch[0].cpu_slot, layout_.sub_batch[1].cpu_slot,
        parts_.attention_scale, parts_.cpu_wait_timeout_us));
  }
  const SubBatchLayout& rows = layout_.sub_batch[stage.sub_batch];
  stream.Launch([this, &rows, slot = stage.sub_batch, layer = stage.layer] {
    return SendRows(parts_, rows, slot, layer);
  });
  return absl::OkStatus();
}

void StageRunner::LaunchJoin(const Stage& stage, device::Stream& stream) {
  const SubBatchLayout& rows = layout_.sub_batch[stage.sub_batch];
  stream.Launch([this, &rows, slot = stage.sub_batch, layer = stage.layer] {
    return JoinRows(parts_, rows, slot, layer);
  });
  ClockOf(stream).Mark(stream, Term::kCpuWait);
}

void StageRunner::LaunchSample(device::Stream& stream) {
  const auto batch = static_cast<size_t>(parts_.decoder->max_logit_rows());
  for (size_t first = 0; first < logit_row_ids_.size(); first += batch) {
    const size_t count = std::min(batch, logit_row_ids_.size() - first);
    parts_.decoder->Logits(std::span(logit_row_ids_).subspan(first, count));
    stream.Launch([this, first, count] {
      SampleRows(first, count);
      return absl::OkStatus();
    });
  }
  ClockOf(stream).Mark(stream, Term::kLinear);
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
      SampledToken sampled = SampleRow(logits, *row.work->sample);
      output.token = sampled.token;
      output.logprobs = std::move(sampled.logprobs);
    }
  }
}

StepOutput StageRunner::TakeOutput() {
  StepTimings& timings = output_.timings;
  for (const TermClock& clock : clocks_) {
    timings.linear_us += clock.us(Term::kLinear);
    timings.prefill_us += clock.us(Term::kPrefill);
    timings.gpu_decode_us += clock.us(Term::kGpuDecode);
    timings.cpu_decode_us += clock.us(Term::kCpuWait);
    timings.copies_us += clock.us(Term::kCopies);
  }
  return std::move(output_);
}

}  // namespace tandem::gpu_worker
