#include "common/base/config.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/config_impl.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace tandem::base {

ConfigOption* ConfigSpec::Impl::Find(std::string_view name) {
  for (ConfigOption& option : options) {
    if (option.name == name) {
      return &option;
    }
  }
  return nullptr;
}

void ConfigSpec::Impl::Add(ConfigOption option) {
  TANDEM_CHECK(Find(option.name) == nullptr);
  option.default_text = option.show();
  options.push_back(std::move(option));
}

ConfigSpec::ConfigSpec(std::string program, std::string summary) : impl_(new Impl) {
  impl_->program = std::move(program);
  impl_->summary = std::move(summary);
  Bool("help", &impl_->want_help, "print this text and exit");
  Bool("version", &impl_->want_version, "print the version and exit");
  String("config", &impl_->config_file, "YAML or JSON file with values for these flags");
  Bool("print-config", &impl_->print_config,
       "print every value and where it came from, as YAML, and exit");
  Choice("log-level", &impl_->log_level, {"debug", "info", "warning", "error"},
         "least severe log lines to print");
  Choice("log-format", &impl_->log_format, {"text", "json"}, "form of log lines");
}

ConfigSpec::~ConfigSpec() = default;

const std::vector<std::string>& ConfigSpec::warnings() const { return impl_->warnings; }

const std::string& ConfigSpec::log_level() const { return impl_->log_level; }

const std::string& ConfigSpec::log_format() const { return impl_->log_format; }

void ConfigSpec::KnownVariable(std::string name) {
  impl_->known_variables.push_back(std::move(name));
}

std::string ConfigSpec::SourceOf(std::string_view name) const {
  const ConfigOption* option = impl_->Find(name);
  TANDEM_CHECK(option != nullptr);
  return option->source;
}

const std::vector<std::string>& ConfigSpec::ValuesOf(std::string_view name) const {
  const ConfigOption* option = impl_->Find(name);
  TANDEM_CHECK(option != nullptr);
  return option->values;
}

std::vector<std::string> ConfigSpec::Variables() const {
  std::vector<std::string> names;
  for (const ConfigOption& option : impl_->options) {
    names.push_back(EnvironmentName(option.name));
  }
  return names;
}

std::string EnvironmentName(std::string_view option_name) {
  return StrCat("TANDEM_",
                absl::AsciiStrToUpper(absl::StrReplaceAll(AbslView(option_name), {{"-", "_"}})));
}

std::string ConfigSpec::Help() const {
  const PositionalArguments& positional = impl_->positional;
  const std::string usage = positional.max_count > 0 ? StrCat(" ", positional.value_name) : "";
  std::string text = StrCat("Usage: ", impl_->program, usage, " [flags]\n", impl_->summary, "\n\n");
  if (positional.max_count > 0) {
    StrAppend(&text, "  ", positional.value_name, "\n        ", positional.help, "\n");
  }
  for (const ConfigOption& option : impl_->options) {
    StrAppend(&text, "  --", option.name);
    if (!option.value_name.empty()) {
      StrAppend(&text, " ", option.value_name);
    }
    StrAppend(&text, "\n        ", option.help);
    if (option.repeatable) {
      StrAppend(&text, "; may repeat");
    }
    if (!option.value_name.empty() && !option.default_text.empty() &&
        option.default_text != "\"\"" && option.default_text != "[]") {
      StrAppend(&text, " (default ", option.default_text, ")");
    }
    StrAppend(&text, "\n");
  }
  StrAppend(&text,
            "\nEach flag may also be set as TANDEM_<FLAG> in the environment (dashes as "
            "underscores, lists\nwith commas) or in the --config file. Precedence: "
            "flag, environment, file, default.\n");
  return text;
}

std::optional<int> ConfigSpec::ParseMain(int argc, char** argv) {
  return ParseMain(std::vector<std::string>(argv + 1, argv + argc));
}

std::optional<int> ConfigSpec::ParseMain(const std::vector<std::string>& args) {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (const char* equals = std::strchr(*entry, '=')) {
      environment.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
    }
  }
  const auto outcome = Parse(args, environment);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s: %s\n", impl_->program.c_str(),
                 std::string(outcome.status().message()).c_str());
    return 2;
  }
  if (*outcome == Outcome::kExitZero) {
    for (const std::string& warning : impl_->warnings) {
      std::fprintf(stderr, "%s: warning: %s\n", impl_->program.c_str(), warning.c_str());
    }
    return 0;
  }
  if (const absl::Status status = InitLogging(impl_->program, impl_->log_level, impl_->log_format);
      !status.ok()) {
    std::fprintf(stderr, "%s: %s\n", impl_->program.c_str(), std::string(status.message()).c_str());
    return 2;
  }
  for (const std::string& warning : impl_->warnings) {
    LogWarning(warning);
  }
  return std::nullopt;
}

}  // namespace tandem::base
