#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/config.h"

// Inside of ConfigSpec; for its own source files only.
namespace tandem::base {

struct ConfigOption {
  std::string name;
  std::string value_name;  // empty: a Bool
  std::string help;
  bool repeatable = false;
  bool secret = false;  // --print-config does not show it
  // Forgets the default of a repeatable option before its first value.
  std::function<void()> clear = [] {};
  // Checks and stores one value; the error says what is allowed.
  std::function<absl::Status(std::string_view)> store;
  // The present value as YAML.
  std::function<std::string()> show;
  std::string default_text;
  std::string source = "default";
  std::vector<std::string> values;  // as given
};

struct PositionalArguments {
  std::string value_name;
  std::string help;
  std::vector<std::string>* target = nullptr;
  int max_count = 0;
};

struct ConfigSpec::Impl {
  std::string program;
  std::string summary;
  std::vector<ConfigOption> options;
  PositionalArguments positional;
  std::vector<std::string> known_variables;
  std::vector<std::string> warnings;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string config_file;
  bool want_help = false;
  bool want_version = false;
  bool print_config = false;

  ConfigOption* Find(std::string_view name);
  void Add(ConfigOption option);
};

// Values by option name, in the order given.
using RawValues = std::map<std::string, std::vector<std::string>>;

std::string EnvironmentName(std::string_view option_name);
// Reads a YAML or JSON map of scalars and lists of scalars.
absl::StatusOr<RawValues> ReadConfigFile(const std::string& path);
std::string YamlQuoted(std::string_view text);

}  // namespace tandem::base
