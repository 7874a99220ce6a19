#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// One kind of measurement: `tandem bench NAME`. `run` gets the arguments after the name, prints
// JSON lines to stdout and returns the exit status: 0, 1 when the measurement failed, 2 for bad
// flags.
struct BenchSubcommand {
  std::string name;
  std::string summary;
  int (*run)(const std::vector<std::string>& args) = nullptr;
};

// Adds to those that RunBench knows (serve, attention and exchange are there). Call before
// RunBench, from one thread.
void RegisterBench(const BenchSubcommand& subcommand);

// `tandem bench`: args[0] names the sub-command. An unknown one is exit status 2.
int RunBench(const std::vector<std::string>& args);

}  // namespace tandem::cli
