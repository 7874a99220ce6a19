// The `tandem` command: picks a sub-command.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_command.h"
#include "cli/chat/chat_command.h"
#include "cli/plan/plan_command.h"
#include "cli/serve/serve_command.h"
#include "cli/text/text_command.h"
#include "common/base/config.h"

namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Command kCommands[] = {
    {"serve", "start and supervise router, GPU worker and CPU attention worker on this host",
     tandem::cli::RunServe},
    {"chat", "chat with a running server in the terminal", tandem::cli::RunChat},
    {"text", "tokenizer, chat template and stop strings as JSON lines", tandem::cli::RunText},
    {"bench", "measure a running server", tandem::cli::RunBench},
    {"plan", "simulate the scheduler on a GPU's profile", tandem::cli::RunPlan},
};

void PrintHelp(FILE* out) {
  std::fputs("Usage: tandem COMMAND [arguments]\n\n", out);
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-8s %s\n", std::string(command.name).c_str(),
                 std::string(command.summary).c_str());
  }
  std::fputs("\ntandem COMMAND --help lists the flags of a command.\n", out);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    PrintHelp(stderr);
    return 2;
  }
  if (args[0] == "--help" || args[0] == "help") {
    PrintHelp(stdout);
    return 0;
  }
  if (args[0] == "--version") {
    std::printf("tandem %s\n", std::string(tandem::base::Version()).c_str());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (args[0] == command.name) {
      return command.run({args.begin() + 1, args.end()});
    }
  }
  std::fprintf(stderr, "tandem: unknown command '%s'; --help lists what is allowed\n",
               args[0].c_str());
  return 2;
}
