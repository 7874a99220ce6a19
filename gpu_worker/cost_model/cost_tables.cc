#include "gpu_worker/cost_model/cost_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

constexpr std::string_view kMagic = "tandem cost tables 1";
constexpr size_t kMostPoints = 4096;  // of a table

absl::Status Bad(std::string_view table, std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat("cost table ", table, ": ", what));
}

absl::Status CheckAxis(std::string_view table, const std::vector<double>& axis) {
  if (axis.empty() || axis.size() > kMostPoints) {
    return Bad(table, "an axis has no points or too many");
  }
  for (size_t i = 0; i < axis.size(); ++i) {
    if (!std::isfinite(axis[i]) || axis[i] < 0 || (i > 0 && axis[i] <= axis[i - 1])) {
      return Bad(table, "an axis does not grow");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(std::string_view table, const std::vector<double>& us, size_t count) {
  if (us.size() != count) {
    return Bad(table, base::StrCat("has ", us.size(), " times for ", count, " points"));
  }
  for (const double time_us : us) {
    if (!std::isfinite(time_us) || time_us <= 0) {
      return Bad(table, "a time is not positive and finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCurve(std::string_view table, const CostCurve& curve) {
  TANDEM_RETURN_IF_ERROR(CheckAxis(table, curve.at));
  return CheckTimes(table, curve.us, curve.at.size());
}

absl::Status CheckGrid(std::string_view table, const CostGrid& grid) {
  TANDEM_RETURN_IF_ERROR(CheckAxis(table, grid.rows));
  TANDEM_RETURN_IF_ERROR(CheckAxis(table, grid.columns));
  return CheckTimes(table, grid.us, grid.rows.size() * grid.columns.size());
}

// The segment of `axis` that `x` lies in or is nearest to, and the place in it; beyond the ends
// below 0 or above 1. One point: segment 0, place 0.
struct Place {
  size_t segment = 0;
  double fraction = 0;
};
Place PlaceOn(const std::vector<double>& axis, double x) {
  if (axis.size() < 2) {
    return {};
  }
  const auto above = std::upper_bound(axis.begin(), axis.end(), x);
  const auto index = static_cast<size_t>(above - axis.begin());
  const size_t segment = std::clamp<size_t>(index, 1, axis.size() - 1) - 1;
  return {segment, (x - axis[segment]) / (axis[segment + 1] - axis[segment])};
}

double Between(double low, double high, double fraction) { return low + fraction * (high - low); }

// Below the first point there is no less than that point's share, so that a handful of rows is not
// taken for free.
double At(const CostCurve& curve, double x) {
  if (curve.at.size() < 2 || x <= curve.at.front()) {
    return curve.us.front();
  }
  const Place place = PlaceOn(curve.at, x);
  return Between(curve.us[place.segment], curve.us[place.segment + 1], place.fraction);
}

double At(const CostGrid& grid, double row, double column) {
  const Place r = PlaceOn(grid.rows, std::max(row, grid.rows.front()));
  const Place c = PlaceOn(grid.columns, std::max(column, grid.columns.front()));
  const size_t width = grid.columns.size();
  const auto along = [&](size_t line) {
    const double* us = &grid.us[line * width + c.segment];
    return width < 2 ? us[0] : Between(us[0], us[1], c.fraction);
  };
  const double low = along(r.segment);
  return grid.rows.size() < 2 ? low : Between(low, along(r.segment + 1), r.fraction);
}

// No time falls along an axis: more work must not look cheaper. What disturbs a measurement makes
// it longer, so of two that contradict each other the shorter one is right.
void MakeMonotone(CostCurve* curve) {
  for (size_t i = curve->us.size(); i-- > 1;) {
    curve->us[i - 1] = std::min(curve->us[i - 1], curve->us[i]);
  }
}
void MakeMonotone(CostGrid* grid) {
  const size_t width = grid->columns.size();
  for (size_t i = grid->us.size(); i-- > 0;) {
    if (i % width + 1 < width) {
      grid->us[i] = std::min(grid->us[i], grid->us[i + 1]);
    }
    if (i + width < grid->us.size()) {
      grid->us[i] = std::min(grid->us[i], grid->us[i + width]);
    }
  }
}

class TableCostModel : public CostModel {
 public:
  TableCostModel(CostTables tables, std::shared_ptr<const CostModel> fallback)
      : tables_(std::move(tables)), fallback_(std::move(fallback)) {
    for (CostCurve* curve : {&tables_.linear, &tables_.transfer, &tables_.copy}) {
      MakeMonotone(curve);
    }
    for (CostGrid* grid : {&tables_.prefill, &tables_.gpu_decode, &tables_.cpu_decode}) {
      MakeMonotone(grid);
    }
  }

  int32_t num_layers() const override { return tables_.num_layers; }
  double LinearUs(int64_t rows) const override {
    return rows <= 0 ? 0 : At(tables_.linear, static_cast<double>(rows));
  }
  double PrefillUs(int64_t chunk, int64_t context) const override {
    return chunk <= 0
               ? 0
               : At(tables_.prefill, static_cast<double>(chunk), static_cast<double>(context));
  }
  double GpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    return Decode(tables_.gpu_decode, sequences, context_tokens);
  }
  double CpuDecodeUs(int64_t sequences, int64_t context_tokens) const override {
    return tables_.cpu_decode.us.empty() ? fallback_->CpuDecodeUs(sequences, context_tokens)
                                         : Decode(tables_.cpu_decode, sequences, context_tokens);
  }
  double TransferUs(int64_t rows) const override {
    if (tables_.transfer.us.empty()) {
      return fallback_->TransferUs(rows);
    }
    return rows <= 0 ? 0 : At(tables_.transfer, static_cast<double>(rows));
  }
  double CopyUs(int64_t tokens) const override {
    if (tables_.copy.us.empty()) {
      return fallback_->CopyUs(tokens);
    }
    return tokens <= 0 ? 0 : At(tables_.copy, static_cast<double>(tokens));
  }
  double LaunchUs() const override { return tables_.launch_us; }
  double overlap() const override { return tables_.overlap; }

 private:
  static double Decode(const CostGrid& grid, int64_t sequences, int64_t context_tokens) {
    return sequences <= 0
               ? 0
               : At(grid, static_cast<double>(sequences),
                    static_cast<double>(context_tokens) / static_cast<double>(sequences));
  }

  CostTables tables_;
  std::shared_ptr<const CostModel> fallback_;
};

// All parts of the tables by name, in the order of the file.
struct NamedPart {
  const char* name;
  std::vector<double>* values;
};
std::vector<NamedPart> PartsOf(CostTables* t) {
  return {{"linear.rows", &t->linear.at},
          {"linear.us", &t->linear.us},
          {"prefill.chunks", &t->prefill.rows},
          {"prefill.contexts", &t->prefill.columns},
          {"prefill.us", &t->prefill.us},
          {"gpu_decode.sequences", &t->gpu_decode.rows},
          {"gpu_decode.tokens", &t->gpu_decode.columns},
          {"gpu_decode.us", &t->gpu_decode.us},
          {"cpu_decode.sequences", &t->cpu_decode.rows},
          {"cpu_decode.tokens", &t->cpu_decode.columns},
          {"cpu_decode.us", &t->cpu_decode.us},
          {"transfer.rows", &t->transfer.at},
          {"transfer.us", &t->transfer.us},
          {"copy.tokens", &t->copy.at},
          {"copy.us", &t->copy.us}};
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(base::StrCat("the file of cost tables ", what));
}

// The part of `*text` up to the next `separator`, which is taken off with it.
std::string_view Take(char separator, std::string_view* text) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

absl::Status ReadPart(std::string_view line, const char* name, std::vector<double>* values) {
  if (Take(' ', &line) != name) {
    return Damaged(base::StrCat("has no line ", name));
  }
  while (!line.empty()) {
    double value = 0;
    if (values->size() == kMostPoints ||
        !absl::SimpleAtod(base::AbslView(Take(' ', &line)), &value)) {
      return Damaged(base::StrCat("has a bad number in ", name));
    }
    values->push_back(value);
  }
  return absl::OkStatus();
}

// "name value"; the value may hold spaces.
absl::StatusOr<std::string_view> ValueOf(std::string_view line, std::string_view name) {
  if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') {
    return Damaged(base::StrCat("has no line ", name));
  }
  return line.substr(name.size() + 1);
}

absl::Status ReadScalars(std::string_view line, CostTables* tables) {
  std::vector<double> scalars;
  TANDEM_RETURN_IF_ERROR(ReadPart(line, "layers_launch_overlap", &scalars));
  if (scalars.size() != 3 || !(scalars[0] >= 1 && scalars[0] <= 1e6)) {
    return Damaged("has bad scalars");
  }
  tables->num_layers = static_cast<int32_t>(scalars[0]);
  tables->launch_us = scalars[1];
  tables->overlap = scalars[2];
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateCostTables(const CostTables& tables) {
  if (tables.num_layers < 1) {
    return Bad("num_layers", "is below 1");
  }
  if (!(tables.launch_us >= 0 && std::isfinite(tables.launch_us))) {
    return Bad("launch_us", "is negative or not finite");
  }
  if (!(tables.overlap >= 0 && tables.overlap <= 1)) {
    return Bad("overlap", "is outside of 0 to 1");
  }
  TANDEM_RETURN_IF_ERROR(CheckCurve("linear", tables.linear));
  TANDEM_RETURN_IF_ERROR(CheckGrid("prefill", tables.prefill));
  TANDEM_RETURN_IF_ERROR(CheckGrid("gpu_decode", tables.gpu_decode));
  const bool no_cpu =
      tables.cpu_decode.us.empty() && tables.transfer.us.empty() && tables.copy.us.empty();
  if (no_cpu) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckGrid("cpu_decode", tables.cpu_decode));
  TANDEM_RETURN_IF_ERROR(CheckCurve("transfer", tables.transfer));
  return CheckCurve("copy", tables.copy);
}

std::shared_ptr<const CostModel> MakeTableCostModel(const CostTables& tables,
                                                    std::shared_ptr<const CostModel> fallback) {
  return std::make_shared<TableCostModel>(tables, std::move(fallback));
}

std::string WriteCostTables(const CostTables& tables, std::string_view key) {
  CostTables copy = tables;
  std::string body = base::StrCat("key ", key, "\nlayers_launch_overlap ", tables.num_layers, " ",
                                  tables.launch_us, " ", tables.overlap, "\n");
  for (const NamedPart& part : PartsOf(&copy)) {
    base::StrAppend(&body, part.name);
    for (const double value : *part.values) {
      base::StrAppend(&body, " ", value);
    }
    body += '\n';
  }
  return base::StrCat(kMagic, "\nsha256 ", base::Sha256Hex(body), "\n", body);
}

absl::StatusOr<CostTables> ReadCostTables(std::string_view text, std::string_view key) {
  const std::string_view magic = Take('\n', &text);
  if (!magic.starts_with("tandem cost tables ")) {
    return Damaged("does not begin as one");
  }
  if (magic != kMagic) {
    return absl::FailedPreconditionError(
        base::StrCat("the cost tables are of version '", magic, "', not '", kMagic, "'"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string_view checksum, ValueOf(Take('\n', &text), "sha256"));
  if (checksum != base::Sha256Hex(text)) {
    return Damaged("is truncated or damaged: its checksum differs");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string_view written_for, ValueOf(Take('\n', &text), "key"));
  if (written_for != key) {
    return absl::FailedPreconditionError(
        base::StrCat("the cost tables were measured for '", written_for, "', not for '", key, "'"));
  }
  CostTables tables;
  TANDEM_RETURN_IF_ERROR(ReadScalars(Take('\n', &text), &tables));
  for (const NamedPart& part : PartsOf(&tables)) {
    TANDEM_RETURN_IF_ERROR(ReadPart(Take('\n', &text), part.name, part.values));
  }
  if (!text.empty()) {
    return Damaged("has lines too many");
  }
  TANDEM_RETURN_IF_ERROR(ValidateCostTables(tables));
  return tables;
}

}  // namespace tandem::gpu_worker
