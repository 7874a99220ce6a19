#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// tandem chat: a chat with a running server in the terminal.
int RunChat(const std::vector<std::string>& args);

}  // namespace tandem::cli
