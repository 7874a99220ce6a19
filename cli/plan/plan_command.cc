#include "cli/plan/plan_command.h"

#include <cstdio>
#include <optional>

#include "cli/plan/plan_flags.h"
#include "cli/plan/plan_html.h"
#include "cli/plan/plan_report.h"
#include "cli/plan/sweep.h"
#include "common/base/files.h"

namespace tandem::cli {
namespace {

int Failed(const absl::Status& error) {
  std::fprintf(stderr, "tandem plan: %s\n", std::string(error.message()).c_str());
  const bool is_input = error.code() == absl::StatusCode::kInvalidArgument ||
                        error.code() == absl::StatusCode::kNotFound ||
                        error.code() == absl::StatusCode::kUnimplemented;
  return is_input ? 2 : 1;
}

int Deploy(const PlanSettings& settings) {
  const PlanPoint point = PointsOf(settings).front();
  const absl::StatusOr<DeployAnswer> answer = FindDeployment(settings, point);
  if (!answer.ok()) {
    return Failed(answer.status());
  }
  const std::string text = settings.flags.table ? DeployText(settings, point, *answer)
                                                : DeployJson(settings, point, *answer) + "\n";
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

int RunPlan(const std::vector<std::string>& args) {
  base::ConfigSpec spec("tandem plan",
                        "Simulates the production scheduler on a GPU's profile: what a deployment "
                        "would serve, and what to deploy.");
  PlanFlags flags;
  DeclarePlanFlags(&spec, &flags);
  if (const std::optional<int> status = spec.ParseMain(args)) {
    return *status;
  }
  const absl::StatusOr<PlanSettings> settings = ResolvePlanFlags(flags);
  if (!settings.ok()) {
    return Failed(settings.status());
  }
  if (flags.deploy) {
    return Deploy(*settings);
  }
  const absl::StatusOr<std::vector<PlanOutcome>> outcomes =
      RunPoints(*settings, PointsOf(*settings));
  if (!outcomes.ok()) {
    return Failed(outcomes.status());
  }
  if (flags.table) {
    std::fputs(PlanTable(*settings, *outcomes).c_str(), stdout);
  } else {
    for (const PlanOutcome& outcome : *outcomes) {
      std::printf("%s\n", PlanJson(*settings, outcome).c_str());
    }
  }
  if (!flags.html.empty()) {
    if (const absl::Status status =
            base::WriteFileByRename(flags.html, PlanHtml(*settings, *outcomes));
        !status.ok()) {
      return Failed(status);
    }
  }
  return 0;
}

}  // namespace tandem::cli
