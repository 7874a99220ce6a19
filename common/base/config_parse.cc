// Reads flags, environment and file, and applies for each option the source that goes first.
#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/config.h"
#include "common/base/config_impl.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::base {
namespace {

// A flag as it stands on the command line.
struct FlagArgument {
  ConfigOption* option = nullptr;
  std::optional<std::string> value;  // of --name=value, --no-name or a bare Bool
};

absl::StatusOr<FlagArgument> ReadFlag(std::vector<ConfigOption>& options, std::string_view arg) {
  std::string_view name = arg.substr(2);
  FlagArgument flag;
  if (const size_t equals = name.find('='); equals != std::string_view::npos) {
    flag.value = std::string(name.substr(equals + 1));
    name = name.substr(0, equals);
  }
  for (ConfigOption& option : options) {
    if (option.name == name) {
      flag.option = &option;
      if (option.value_name.empty() && !flag.value) {
        flag.value = "true";
      }
      return flag;
    }
    if (option.value_name.empty() && !flag.value && absl::StartsWith(AbslView(name), "no-") &&
        name.substr(3) == option.name) {
      flag.option = &option;
      flag.value = "false";
      return flag;
    }
  }
  return absl::InvalidArgumentError(
      StrCat("unknown flag --", name, " (--help lists what is allowed)"));
}

absl::Status ReadArguments(const std::vector<std::string>& args, std::vector<ConfigOption>& options,
                           const PositionalArguments& positional, RawValues* flags) {
  bool only_positional = false;
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!only_positional && arg == "--") {
      only_positional = true;
      continue;
    }
    if (only_positional || !absl::StartsWith(arg, "--")) {
      if (!only_positional && absl::StartsWith(arg, "-") && arg.size() > 1) {
        return absl::InvalidArgumentError(
            StrCat("unknown flag ", arg, " (--help lists what is allowed)"));
      }
      rest.push_back(arg);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(FlagArgument flag, ReadFlag(options, arg));
    if (!flag.value) {
      if (i + 1 >= args.size() || absl::StartsWith(args[i + 1], "--")) {
        return absl::InvalidArgumentError(
            StrCat("flag --", flag.option->name, " needs a value: ", flag.option->value_name));
      }
      flag.value = args[++i];
    }
    (*flags)[flag.option->name].push_back(*flag.value);
  }
  if (rest.size() > static_cast<size_t>(positional.max_count)) {
    return absl::InvalidArgumentError(
        StrCat("unexpected argument '", rest[static_cast<size_t>(positional.max_count)], "'"));
  }
  if (positional.target != nullptr) {
    *positional.target = std::move(rest);
  }
  return absl::OkStatus();
}

absl::Status Apply(ConfigOption& option, const std::vector<std::string>& values,
                   std::string_view spelled, std::string_view source) {
  option.clear();
  for (const std::string& value : values) {
    if (const absl::Status status = option.store(value); !status.ok()) {
      return absl::InvalidArgumentError(
          StrCat(spelled, ": bad value '", option.secret ? "..." : value, "': ", status.message()));
    }
  }
  option.source = std::string(source);
  option.values = values;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ScalarText(const YAML::Node& node, std::string_view where) {
  if (!node.IsScalar()) {
    return absl::InvalidArgumentError(
        StrCat(where, ": allowed: a plain value or a list of plain values"));
  }
  return node.Scalar();
}

absl::StatusOr<RawValues> ReadMap(const YAML::Node& root, const std::string& path) {
  RawValues values;
  if (root.IsNull()) {
    return values;  // an empty file
  }
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(StrCat("--config ", path, ": not a map of flags"));
  }
  for (const auto& entry : root) {
    const std::string name = absl::StrReplaceAll(entry.first.Scalar(), {{"_", "-"}});
    const std::string where = StrCat("--config ", path, ": ", name);
    if (values.contains(name)) {
      return absl::InvalidArgumentError(StrCat(where, ": given twice"));
    }
    std::vector<std::string>& list = values[name];
    if (entry.second.IsNull()) {
      values.erase(name);  // as --print-config shows what is not set
      continue;
    }
    if (entry.second.IsSequence()) {
      for (const YAML::Node& item : entry.second) {
        TANDEM_ASSIGN_OR_RETURN(std::string text, ScalarText(item, where));
        list.push_back(std::move(text));
      }
    } else {
      TANDEM_ASSIGN_OR_RETURN(std::string text, ScalarText(entry.second, where));
      list.push_back(std::move(text));
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<RawValues> ReadConfigFile(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(StrCat("--config ", path, ": no such file"));
  }
  try {
    return ReadMap(YAML::LoadFile(path), path);
  } catch (const std::exception& error) {  // yaml-cpp reports by exceptions
    return absl::InvalidArgumentError(StrCat("--config ", path, ": ", error.what()));
  }
}

absl::StatusOr<ConfigSpec::Outcome> ConfigSpec::Parse(
    const std::vector<std::string>& args, const std::map<std::string, std::string>& environment) {
  Impl& impl = *impl_;
  RawValues flags;
  TANDEM_RETURN_IF_ERROR(ReadArguments(args, impl.options, impl.positional, &flags));
  if (flags.contains("help")) {
    std::fputs(Help().c_str(), stdout);
    return Outcome::kExitZero;
  }
  if (flags.contains("version")) {
    std::printf("%s %s\n", impl.program.c_str(), std::string(Version()).c_str());
    return Outcome::kExitZero;
  }
  RawValues file;
  ConfigOption& config = *impl.Find("config");
  if (const auto flag = flags.find("config"); flag != flags.end()) {
    TANDEM_RETURN_IF_ERROR(Apply(config, flag->second, "--config", "flag"));
  } else if (const auto variable = environment.find("TANDEM_CONFIG");
             variable != environment.end()) {
    TANDEM_RETURN_IF_ERROR(Apply(config, {variable->second}, "TANDEM_CONFIG", "environment"));
  }
  if (!impl.config_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(file, ReadConfigFile(impl.config_file));
    for (const auto& [name, values] : file) {
      if (impl.Find(name) == nullptr || name == "config") {
        return absl::InvalidArgumentError(
            StrCat("--config ", impl.config_file, ": unknown flag ", name));
      }
    }
  }
  return ApplySources(flags, environment, file);
}

absl::StatusOr<ConfigSpec::Outcome> ConfigSpec::ApplySources(
    const std::map<std::string, std::vector<std::string>>& flags,
    const std::map<std::string, std::string>& environment,
    const std::map<std::string, std::vector<std::string>>& file) {
  Impl& impl = *impl_;
  std::vector<std::string> known = impl.known_variables;
  for (ConfigOption& option : impl.options) {
    const std::string variable = EnvironmentName(option.name);
    known.push_back(variable);
    const auto in_flags = flags.find(option.name);
    const auto in_environment = environment.find(variable);
    const auto in_file = file.find(option.name);
    if (option.name == "config") {
      continue;
    }
    if (in_flags != flags.end()) {
      TANDEM_RETURN_IF_ERROR(Apply(option, in_flags->second, StrCat("--", option.name), "flag"));
    } else if (in_environment != environment.end()) {
      const std::vector<std::string> values =
          option.repeatable ? std::vector<std::string>(
                                  absl::StrSplit(in_environment->second, ',', absl::SkipEmpty()))
                            : std::vector<std::string>{in_environment->second};
      TANDEM_RETURN_IF_ERROR(Apply(option, values, variable, "environment"));
    } else if (in_file != file.end()) {
      if (in_file->second.size() != 1 && !option.repeatable) {
        return absl::InvalidArgumentError(
            StrCat("--config ", impl.config_file, ": ", option.name, ": takes one value"));
      }
      TANDEM_RETURN_IF_ERROR(Apply(option, in_file->second,
                                   StrCat("--config ", impl.config_file, ": ", option.name),
                                   "file"));
    }
  }
  for (const auto& [name, value] : environment) {
    if (absl::StartsWith(name, "TANDEM_") &&
        std::find(known.begin(), known.end(), name) == known.end()) {
      impl.warnings.push_back(
          StrCat("environment variable ", name, " sets no flag of ", impl.program));
    }
  }
  if (!impl.print_config) {
    return Outcome::kRun;
  }
  for (const ConfigOption& option : impl.options) {
    if (option.name == "help" || option.name == "version" || option.name == "print-config" ||
        option.name == "config") {
      continue;
    }
    std::printf(
        "%s: %s  # %s\n", option.name.c_str(),
        option.secret && option.source != "default" ? "\"(secret)\"" : option.show().c_str(),
        option.source.c_str());
  }
  return Outcome::kExitZero;
}

}  // namespace tandem::base
