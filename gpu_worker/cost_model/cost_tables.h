#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/cost_model/cost_model.h"

namespace tandem::gpu_worker {

// Measured microseconds at points of one axis; the axis grows strictly.
struct CostCurve {
  std::vector<double> at;
  std::vector<double> us;
};

// Measured microseconds at every pair of points of two axes: us[i * columns.size() + j].
struct CostGrid {
  std::vector<double> rows;
  std::vector<double> columns;
  std::vector<double> us;
};

// The measured terms of one layer. Plain value.
struct CostTables {
  int32_t num_layers = 0;
  CostCurve linear;      // token rows
  CostGrid prefill;      // tokens of the chunk, tokens before it
  CostGrid gpu_decode;   // sequences, tokens of each
  CostGrid cpu_decode;   // the same; in the CPU pool's type, exchange included
  CostCurve transfer;    // rows of CPU decodes
  CostCurve copy;        // tokens between the pools
  double launch_us = 0;  // per stage
  double overlap = 1;
};

// InvalidArgument names the table and what is wrong with it: no points, sizes that contradict each
// other, an axis that does not grow, times that are not positive and finite. The CPU tier's tables
// (cpu_decode, transfer, copy) may all be empty: then there is none.
absl::Status ValidateCostTables(const CostTables& tables);

// Linear between the points (bilinear in grids), never falling along an axis whatever was measured;
// beyond the last point it goes on with the last slope. Tables must be valid. Terms without a table
// come from `fallback`.
std::shared_ptr<const CostModel> MakeTableCostModel(const CostTables& tables,
                                                    std::shared_ptr<const CostModel> fallback);

// A text form for the disk: version, key and checksum stand in it.
std::string WriteCostTables(const CostTables& tables, std::string_view key);
// FailedPrecondition when it was written for another key or version (the error says which),
// DataLoss when it is truncated or damaged, InvalidArgument for tables that are not valid.
absl::StatusOr<CostTables> ReadCostTables(std::string_view text, std::string_view key);

}  // namespace tandem::gpu_worker
