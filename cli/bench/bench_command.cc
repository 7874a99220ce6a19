#include "cli/bench/bench_command.h"

#include <cstdio>

#include "cli/bench/serve_bench.h"
#if TANDEM_HAS_CPU_BENCH
#include "cli/bench/attention_bench.h"
#include "cli/bench/exchange_bench.h"
#endif

namespace tandem::cli {
namespace {

std::vector<BenchSubcommand> BuiltIn() {
  std::vector<BenchSubcommand> subcommands;
  subcommands.push_back(
      {"serve", "load a running server and measure throughput and latencies", RunServeBench});
#if TANDEM_HAS_CPU_BENCH
  subcommands.push_back({"attention", "decode attention of the CPU worker against its read limit",
                         RunBenchAttention});
  subcommands.push_back(
      {"exchange", "round trip of one layer between the two processes", RunBenchExchange});
#endif
  return subcommands;
}

std::vector<BenchSubcommand>& Subcommands() {
  static std::vector<BenchSubcommand> subcommands = BuiltIn();
  return subcommands;
}

void PrintHelp(std::FILE* out) {
  std::fputs("Usage: tandem bench WHAT [arguments]\n\n", out);
  for (const BenchSubcommand& subcommand : Subcommands()) {
    std::fprintf(out, "  %-10s %s\n", subcommand.name.c_str(), subcommand.summary.c_str());
  }
  std::fputs("\ntandem bench WHAT --help lists the flags.\n", out);
}

}  // namespace

void RegisterBench(const BenchSubcommand& subcommand) { Subcommands().push_back(subcommand); }

int RunBench(const std::vector<std::string>& args) {
  if (args.empty()) {
    PrintHelp(stderr);
    return 2;
  }
  if (args[0] == "--help" || args[0] == "help") {
    PrintHelp(stdout);
    return 0;
  }
  std::string allowed;
  for (const BenchSubcommand& subcommand : Subcommands()) {
    if (args[0] == subcommand.name) {
      return subcommand.run({args.begin() + 1, args.end()});
    }
    allowed += (allowed.empty() ? "" : ", ") + subcommand.name;
  }
  std::fprintf(stderr, "tandem bench: unknown sub-command '%s'; allowed: %s\n", args[0].c_str(),
               allowed.c_str());
  return 2;
}

}  // namespace tandem::cli
