#include "cli/plan/simulation.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

using gpu_worker::EngineCore;
using gpu_worker::FinishReason;
using gpu_worker::GenerationUpdate;
using gpu_worker::StepInput;

// The clock counts whole microseconds, so each step ends a little after the last one.
constexpr int64_t kShortestStepUs = 1;
// Requests inside the engine; later ones wait outside, as clients that are told to come again, so
// that long prompts do not take all memory.
constexpr size_t kMostOpen = 8192;

class Run {
 public:
  Run(const SimulationSetup& setup, std::span<const PlannedArrival> requests)
      : setup_(setup),
        requests_(requests),
        runner_(setup.limits, setup.cost_model),
        core_(OptionsFor(setup), setup.limits, setup.cost_model) {
    if (setup.limits.num_cpu_blocks > 0) {
      core_.OnCpuBlocksReady(setup.limits.num_cpu_blocks);
      core_.OnCpuWorkerUp();
    }
  }

  absl::StatusOr<SimulationResult> ToEnd() {
    result_.requests = static_cast<int64_t>(requests_.size());
    for (int64_t step = 0; next_ < requests_.size() || !core_.idle(); ++step) {
      if (step >= setup_.max_steps) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the simulation takes more than ", setup_.max_steps, " steps"));
      }
      Arrive();
      TANDEM_RETURN_IF_ERROR(Step());
    }
    result_.duration_us = now_us_;
    result_.window_us = setup_.window_us;
    result_.counters = core_.snapshot(now_us_);
    return std::move(result_);
  }

 private:
  struct Open {
    int64_t arrival_us = 0;
    int32_t wanted_tokens = 0;
    int64_t last_token_us = 0;
    int32_t tokens = 0;
  };

  // A simulated client waits as long as it takes.
  static gpu_worker::EngineOptions OptionsFor(const SimulationSetup& setup) {
    gpu_worker::EngineOptions options = setup.engine;
    options.max_waiting = static_cast<int32_t>(kMostOpen) + 1;
    return options;
  }

  bool IsTooLong(const PlannedArrival& request) const {
    const int64_t most = setup_.engine.max_model_len;
    return most > 0 && int64_t{request.prompt_tokens} + request.output_tokens > most;
  }

  void Arrive() {
    for (; NextIsDue(); ++next_) {
      const PlannedArrival& planned = requests_[next_];
      if (IsTooLong(planned)) {  // before its prompt takes memory
        ++result_.refused;
        continue;
      }
      gpu_worker::GenerationRequest request;
      request.prompt_tokens.assign(static_cast<size_t>(planned.prompt_tokens), 0);
      request.max_tokens = planned.output_tokens;
      request.ignore_eos = true;
      const gpu_worker::SubmitResult submitted = core_.Submit(std::move(request), now_us_);
      if (submitted.outcome != gpu_worker::SubmitOutcome::kAccepted) {
        ++result_.refused;
        continue;
      }
      const int64_t arrival_us = setup_.concurrency > 0 ? now_us_ : planned.arrival_us;
      open_[submitted.sequence_id] = {arrival_us, planned.output_tokens, 0, 0};
    }
  }

  bool NextIsDue() const {
    if (next_ >= requests_.size() || open_.size() >= kMostOpen) {
      return false;
    }
    return setup_.concurrency > 0 ? static_cast<int64_t>(open_.size()) < setup_.concurrency
                                  : requests_[next_].arrival_us <= now_us_;
  }

  absl::Status Step() {
    const StepInput* input = core_.PlanStep(now_us_);
    if (input == nullptr) {
      TANDEM_RETURN_IF_ERROR(TakeUpdates());
      return core_.idle() && next_ >= requests_.size() ? absl::OkStatus() : WaitForNext();
    }
    Disturb();
    const absl::StatusOr<gpu_worker::StepOutput> output = runner_.Run(*input);
    if (!output.ok()) {
      return output.status();
    }
    const int64_t start_us = now_us_;
    const double step_us = runner_.last_step().total_us + setup_.step_overhead_us;
    now_us_ += std::max<int64_t>(std::llround(step_us), kShortestStepUs);
    core_.Commit(*output, now_us_);
    Account(static_cast<int>(input->mode), start_us);
    if (setup_.check_invariants) {
      TANDEM_RETURN_IF_ERROR(core_.CheckInvariants());
    }
    return TakeUpdates();
  }

  // Nothing can run now: on to the next arrival or to what the engine waits for.
  absl::Status WaitForNext() {
    const int64_t wake_us = core_.NextWakeUs(now_us_);
    int64_t next_us = std::numeric_limits<int64_t>::max();
    if (next_ < requests_.size() && setup_.concurrency == 0) {
      next_us = requests_[next_].arrival_us;
    }
    if (wake_us > now_us_) {
      next_us = std::min(next_us, wake_us);
    }
    if (next_us == std::numeric_limits<int64_t>::max() || next_us <= now_us_) {
      return absl::InternalError(
          absl::StrCat(open_.size(), " requests wait and nothing will ever run them"));
    }
    now_us_ = next_us;
    return absl::OkStatus();
  }

  void Disturb() {
    for (; next_disturbance_ < setup_.disturbances.size() &&
           setup_.disturbances[next_disturbance_].from_us <= now_us_;
         ++next_disturbance_) {
      runner_.set_disturbance(setup_.disturbances[next_disturbance_].factors);
    }
  }

  void Account(int mode, int64_t start_us) {
    const gpu_worker::StepPrediction& step = runner_.last_step();
    const double gpu_us = step.linear_us + step.prefill_us + step.gpu_decode_us;
    const auto total_us = static_cast<double>(now_us_ - start_us);
    ++result_.steps[mode];
    result_.mode_us[mode] += total_us;
    result_.gpu_busy_us += gpu_us;
    result_.cpu_busy_us += step.cpu_decode_us;
    for (int64_t from_us = start_us; setup_.timeline_us > 0 && from_us < now_us_;) {
      const int64_t index = from_us / setup_.timeline_us;
      const int64_t to_us = std::min((index + 1) * setup_.timeline_us, now_us_);
      const double share = static_cast<double>(to_us - from_us) / total_us;
      TimelinePoint& point = PointAt(static_cast<size_t>(index));
      point.mode_us[mode] += share * total_us;
      point.gpu_busy_us += share * gpu_us;
      point.cpu_busy_us += share * step.cpu_decode_us;
      from_us = to_us;
    }
  }

  TimelinePoint& PointAt(size_t index) {
    while (result_.timeline.size() <= index) {
      result_.timeline.emplace_back().start_us =
          static_cast<int64_t>(result_.timeline.size() - 1) * setup_.timeline_us;
    }
    return result_.timeline[index];
  }

  absl::Status TakeUpdates() {
    for (const auto& [id, update] : core_.TakeUpdates()) {
      const auto it = open_.find(id);
      if (it == open_.end()) {
        return absl::InternalError(absl::StrCat("sequence ", id, " gives tokens after its end"));
      }
      TANDEM_RETURN_IF_ERROR(Take(update, &it->second));
      if (update.finish != FinishReason::kNone) {
        open_.erase(it);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Take(const GenerationUpdate& update, Open* open) {
    if (!update.error.ok()) {
      return update.error;
    }
    const int64_t arrival_us = open->arrival_us;
    if (!update.tokens.empty()) {
      const auto gap_us =
          static_cast<double>(now_us_ - (open->tokens == 0 ? arrival_us : open->last_token_us));
      (open->tokens == 0 ? result_.first_token_us : result_.inter_token_us).Add(gap_us);
      open->last_token_us = now_us_;
      open->tokens += static_cast<int32_t>(update.tokens.size());
      result_.output_tokens += static_cast<int64_t>(update.tokens.size());
      const int64_t in_window_us = now_us_ - setup_.window_from_us;
      if (in_window_us >= 0 && in_window_us < setup_.window_us) {
        result_.window_tokens += static_cast<int64_t>(update.tokens.size());
      }
      if (!result_.timeline.empty()) {
        result_.timeline.back().output_tokens += static_cast<int64_t>(update.tokens.size());
      }
    }
    if (update.finish == FinishReason::kNone) {
      return absl::OkStatus();
    }
    const int32_t wanted = open->wanted_tokens;
    const bool has_outgrown = update.finish == FinishReason::kLength && open->tokens < wanted;
    if (open->tokens != wanted && !has_outgrown) {
      return absl::InternalError(
          absl::StrCat("a request of ", wanted, " tokens got ", open->tokens));
    }
    const auto total_us = static_cast<double>(now_us_ - arrival_us);
    ++result_.completed;
    result_.total_us.Add(total_us);
    result_.per_token_us.Add(total_us / std::max(open->tokens, 1));
    return absl::OkStatus();
  }

  const SimulationSetup& setup_;
  const std::span<const PlannedArrival> requests_;
  SimulatedRunner runner_;
  EngineCore core_;
  absl::flat_hash_map<uint64_t, Open> open_;
  SimulationResult result_;
  int64_t now_us_ = 0;
  size_t next_ = 0;  // to arrive
  size_t next_disturbance_ = 0;
};

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const SimulationSetup& setup,
                                          std::span<const PlannedArrival> requests) {
  return Run(setup, requests).ToEnd();
}

}  // namespace tandem::cli
