#include "cli/chat/chat_command.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>

#include "cli/chat/chat_stream.h"
#include "cli/chat/conversation.h"
#include "common/base/config.h"

namespace tandem::cli {
namespace {

constexpr char kHelp[] =
    "/clear starts afresh, /retry asks the last question again, /system TEXT sets the system "
    "message, /exit ends. Ctrl-C stops an answer.\n";

struct Flags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;
  std::string system;
  double temperature = -1;
  int64_t max_tokens = 0;
};

// Set by Ctrl-C.
std::atomic<bool> g_stop = false;

void OnInterrupt(int) { g_stop = true; }

class ChatLoop {
 public:
  ChatLoop(ChatServer server, Conversation conversation)
      : server_(std::move(server)),
        conversation_(std::move(conversation)),
        interactive_(isatty(STDIN_FILENO) == 1) {}

  int Run() {
    if (interactive_) {
      std::fputs(kHelp, stdout);
    }
    std::string line;
    while (true) {
      if (interactive_) {
        std::fputs("> ", stdout);
        std::fflush(stdout);
      }
      if (!std::getline(std::cin, line)) {
        break;
      }
      if (line == "/exit" || line == "/quit") {
        break;
      }
      if (!line.empty()) {
        Take(line);
      }
    }
    return failed_ ? 1 : 0;
  }

 private:
  void Take(const std::string& line) {
    static constexpr char kSystem[] = "/system ";
    if (line == "/clear") {
      conversation_.Clear();
    } else if (line == "/retry") {
      if (const std::string question = conversation_.Retract(); !question.empty()) {
        Ask(question);
      }
    } else if (line.rfind(kSystem, 0) == 0) {
      conversation_.set_system(line.substr(sizeof kSystem - 1));
    } else if (line[0] == '/') {
      std::fputs(kHelp, stdout);
    } else {
      Ask(line);
    }
  }

  void Ask(const std::string& question) {
    g_stop = false;
    std::string answer;
    bool thinking = false;
    const absl::Status status = StreamChat(
        server_, conversation_.Ask(question), g_stop, [&](ChatText kind, std::string_view text) {
          if (const bool thinks = kind == ChatText::kReasoning; thinks != thinking) {
            thinking = thinks;
            Dim(thinks);
          }
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
          answer += kind == ChatText::kContent ? text : std::string_view();
        });
    if (thinking) {
      Dim(false);
    }
    std::fputs("\n", stdout);
    std::fflush(stdout);
    conversation_.Answer(answer);
    failed_ = !status.ok();
    if (failed_) {
      std::fprintf(stderr, "tandem chat: %s\n", std::string(status.message()).c_str());
    }
  }

  void Dim(bool on) const {
    if (interactive_) {
      std::fputs(on ? "\x1b[2m" : "\x1b[0m\n", stdout);
    } else if (!on) {
      std::fputs("\n", stdout);
    }
  }

  ChatServer server_;
  Conversation conversation_;
  const bool interactive_;
  bool failed_ = false;
};

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "tandem chat: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace

int RunChat(const std::vector<std::string>& args) {
  Flags flags;
  base::ConfigSpec spec("tandem chat", "A chat with a running server in the terminal.");
  spec.String("url", &flags.url, "http://host:port of the server");
  spec.String("api-key", &flags.api_key, "sent as bearer token");
  spec.String("model", &flags.model, "name of the model (default: the server's first)");
  spec.String("system", &flags.system, "system message");
  spec.Double("temperature", &flags.temperature, -1, 2, "below 0: the model's default");
  spec.Int("max-tokens", &flags.max_tokens, 0, 1'000'000'000, "tokens of an answer; 0: no limit");
  if (const std::optional<int> exit_status = spec.ParseMain(args)) {
    return *exit_status;
  }
  const auto url = ParseServerUrl(flags.url);
  if (!url.ok()) {
    return Complain(url.status());
  }
  if (flags.model.empty()) {
    LoadOptions options;
    options.url = *url;
    options.api_key = flags.api_key;
    const auto served = FetchServedModel(options);
    if (!served.ok()) {
      return Complain(served.status());
    }
    flags.model = served->id;
  }
  struct sigaction action {};
  action.sa_handler = &OnInterrupt;
  action.sa_flags = SA_RESTART;  // waiting for a line goes on; /exit or Ctrl-D ends the chat
  sigaction(SIGINT, &action, nullptr);
  Conversation::Settings settings{flags.model, flags.system, {}, {}};
  if (flags.temperature >= 0) {
    settings.temperature = flags.temperature;
  }
  if (flags.max_tokens > 0) {
    settings.max_tokens = flags.max_tokens;
  }
  ChatServer server;
  server.url = *url;
  server.api_key = flags.api_key;
  return ChatLoop(std::move(server), Conversation(std::move(settings))).Run();
}

}  // namespace tandem::cli
