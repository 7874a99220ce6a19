#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::base {

// Options of a program, each settable (in falling precedence) as `--name value` or `--name=value`,
// as the environment variable TANDEM_<NAME> (dashes become underscores), in the YAML or JSON file
// of `--config`, or by its default.
// --help, --version, --config, --print-config, --log-level and --log-format are there without being
// declared. Errors are InvalidArgument, name the flag and what is allowed. Not thread-safe; used
// once at start.
class ConfigSpec {
 public:
  ConfigSpec(std::string program, std::string summary);
  ~ConfigSpec();
  ConfigSpec(const ConfigSpec&) = delete;
  ConfigSpec& operator=(const ConfigSpec&) = delete;

  // Each declares an option that writes to `*target`, whose present value is the default. The
  // target outlives Parse.
  void String(std::string name, std::string* target, std::string help);
  void Strings(std::string name, std::vector<std::string>* target, std::string help);  // repeatable
  void Choice(std::string name, std::string* target, std::vector<std::string> allowed,
              std::string help);
  void Int(std::string name, int64_t* target, int64_t min, int64_t max, std::string help);
  void OptionalInt(std::string name, std::optional<int64_t>* target, int64_t min, int64_t max,
                   std::string help);
  void Double(std::string name, double* target, double min, double max, std::string help);
  // Plain bytes or a number with KiB, MiB, GiB or TiB.
  void Bytes(std::string name, std::optional<uint64_t>* target, std::string help);
  void Bool(std::string name, bool* target, std::string help);  // --name, --name=false, --no-name
  // A value checked by `parse`, whose error says what is allowed.
  void Custom(std::string name, std::string value_name,
              std::function<absl::Status(std::string_view)> parse, std::string help);
  // Accepts up to `max_count` arguments that are not flags (else they are errors).
  void Positional(std::string value_name, std::vector<std::string>* target, int max_count,
                  std::string help);

  // An environment variable TANDEM_... that is no flag and known all the same (no warning).
  void KnownVariable(std::string name);

  enum class Outcome {
    kRun,
    kExitZero
  };  // kExitZero: --help, --version or --print-config printed to stdout

  // `environment` maps variable to value; unknown TANDEM_* variables become warnings().
  absl::StatusOr<Outcome> Parse(const std::vector<std::string>& args,
                                const std::map<std::string, std::string>& environment);
  // Parse for main(): prints an error to stderr and returns exit status 2, or 0 for kExitZero, or
  // nothing to run on. Initialises logging and logs the warnings.
  std::optional<int> ParseMain(int argc, char** argv);
  // The same for a sub-command, whose arguments follow its name.
  std::optional<int> ParseMain(const std::vector<std::string>& args);

  const std::vector<std::string>& warnings() const;
  std::string Help() const;
  // Where the value of `name` came from: "flag", "environment", "file" or "default".
  std::string SourceOf(std::string_view name) const;
  // The texts given for `name`, empty where its default holds: to hand a flag on to a child.
  const std::vector<std::string>& ValuesOf(std::string_view name) const;
  // The environment variables of all flags.
  std::vector<std::string> Variables() const;
  // The values of --log-level and --log-format.
  const std::string& log_level() const;
  const std::string& log_format() const;

 private:
  absl::StatusOr<Outcome> ApplySources(const std::map<std::string, std::vector<std::string>>& flags,
                                       const std::map<std::string, std::string>& environment,
                                       const std::map<std::string, std::vector<std::string>>& file);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The version that --version prints.
std::string_view Version();

}  // namespace tandem::base
