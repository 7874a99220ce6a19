#include "cli/text/text_command.h"

#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "cli/text/open_tokenizer.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/structured_output/compiled_grammar.h"
#include "common/structured_output/grammar_text.h"
#include "nlohmann/json.hpp"
#include "router/frontend/chat_template/chat_template.h"
#include "router/frontend/text/incremental_detokenizer.h"
#include "router/frontend/text/output_text.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBadUsage = 2;
constexpr char kUsage[] =
    "Usage: tandem text encode|decode --tokenizer FILE\n"
    "       tandem text render [--now TIME]\n"
    "       tandem text stop\n"
    "       tandem text grammar --tokenizer FILE\n"
    "One JSON value per line from stdin, one answer per line.\n";

Json Failed(const absl::Status& status) {
  return {{"error", absl::StatusCodeToString(status.code())},
          {"message", std::string(status.message())}};
}

Json Encode(const tokenizer::Tokenizer& tokenizer, const Json& request) {
  tokenizer::EncodeOptions options;
  options.parse_special = request.value("parse_special", false);
  options.add_special = request.value("add_special", false);
  const auto ids = tokenizer.Encode(request.at("text").get<std::string>(), options);
  return ids.ok() ? Json{{"ids", *ids}} : Failed(ids.status());
}

Json Decode(const tokenizer::Tokenizer& tokenizer, const Json& request) {
  text::DetokenizerOptions options;
  options.skip_special = request.value("skip_special", false);
  options.continuation = request.value("continuation", false);
  text::IncrementalDetokenizer detokenizer(&tokenizer, options);
  Json pieces = Json::array();
  for (const Json& id : request.at("ids")) {
    pieces.push_back(detokenizer.Append(id.get<int32_t>()));
  }
  return {{"pieces", pieces}, {"flush", detokenizer.Flush()}};
}

Json Render(int64_t now_unix_s, const Json& request) {
  const auto failed = [](const absl::Status& status) -> Json {
    const auto error = chat_template::TemplateErrorOf(status);
    if (!error) return Failed(status);
    return {{"error", std::string(chat_template::ErrorKindName(error->kind))},
            {"message", error->message},
            {"line", error->line}};
  };
  const auto chat_template =
      chat_template::ChatTemplate::Parse(request.at("template").get<std::string>());
  if (!chat_template.ok()) {
    return failed(chat_template.status());
  }
  chat_template::RenderOptions options;
  options.now_unix_s = now_unix_s;
  const auto rendered =
      (*chat_template)->Render(request.value("variables", Json::object()), options);
  return rendered.ok() ? Json{{"output", rendered->text}} : failed(rendered.status());
}

Json Stop(const Json& request) {
  text::OutputTextOptions options;
  options.stop = request.at("stop").get<std::vector<std::string>>();
  options.include_stop = request.value("include_stop", false);
  options.skip_special = request.value("skip_special", true);
  text::OutputText output(nullptr, options);
  Json emitted = Json::array();
  std::string all;
  bool finished = false;
  for (const Json& token : request.at("tokens")) {
    const std::string bytes = absl::HexStringToBytes(token.at("hex").get<std::string>());
    const auto emission = output.AppendBytes(bytes, token.value("special", false));
    emitted.push_back(emission.text);
    all += emission.text;
    finished = emission.finished;
    if (finished) break;
  }
  const std::string flush = finished ? std::string() : output.Flush().text;
  Json answer = {{"emitted", emitted},
                 {"flush", flush},
                 {"text", all + flush},
                 {"finish", output.hit() ? "stop" : "length"},
                 {"tokens_used", output.tokens_used()}};
  if (output.hit()) answer["hit"] = *output.hit();
  return answer;
}

Json Grammar(const structured_output::GrammarCompiler& compiler, const Json& request) {
  structured_output::GrammarSpec spec;
  spec.kind = structured_output::GrammarSpec::Kind::kJsonSchema;
  spec.text = request.at("schema").dump();
  const auto text = structured_output::GrammarText(spec);
  const absl::StatusOr<std::shared_ptr<const structured_output::CompiledGrammar>> grammar =
      text.ok() ? compiler.Compile(*text) : text.status();
  if (!grammar.ok()) {
    return {{"accepts_schema", false}, {"message", std::string(grammar.status().message())}};
  }
  const auto matcher = structured_output::GrammarMatcher::Create(*grammar);
  if (!matcher.ok()) return Failed(matcher.status());
  Json accepts = Json::array();
  for (const Json& document : request.value("documents", Json::array())) {
    (*matcher)->Reset();
    accepts.push_back((*matcher)->AcceptText(document.get<std::string>()) &&
                      (*matcher)->IsComplete());
  }
  return {{"accepts_schema", true}, {"message", ""}, {"accepts", accepts}};
}

int AnswerLines(const std::function<Json(const Json&)>& answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    Json out;
    try {
      out = answer(Json::parse(line));
    } catch (const Json::exception& error) {
      out = {{"error", "bad request"}, {"message", error.what()}};
    }
    const std::string text =
        out.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      return 1;
    }
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int AnswerGrammars(const tokenizer::Tokenizer& tokenizer) {
  // Any end token will do: documents are followed as texts.
  const int32_t end[] = {tokenizer.eos_id().value_or(tokenizer.vocab_size() - 1)};
  const auto compiler =
      structured_output::GrammarCompiler::Create(tokenizer, tokenizer.vocab_size(), end);
  if (!compiler.ok()) {
    std::fprintf(stderr, "tandem text grammar: %s\n",
                 std::string(compiler.status().message()).c_str());
    return 1;
  }
  return AnswerLines([&](const Json& request) { return Grammar(**compiler, request); });
}

int RunWithTokenizer(const std::string& verb, const std::string& file) {
  const auto tokenizer = OpenTokenizer(file);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "tandem text %s: %s\n", verb.c_str(),
                 tokenizer.status().ToString().c_str());
    return 1;
  }
  if (verb == "grammar") return AnswerGrammars(**tokenizer);
  return AnswerLines([&](const Json& request) {
    return verb == "encode" ? Encode(**tokenizer, request) : Decode(**tokenizer, request);
  });
}

// Seconds since 1970 of "2026-07-05T09:04:03", read as UTC, or of now.
std::optional<int64_t> ReadNow(const std::string& now) {
  if (now.empty()) {
    return base::SystemClock().UnixUs() / 1'000'000;
  }
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%Y-%m-%dT%H:%M:%S", now, &time, &error)) {
    return std::nullopt;
  }
  return absl::ToUnixSeconds(time);
}

int RunVerb(const std::string& verb, const std::vector<std::string>& args) {
  std::string file;
  std::string now;
  base::ConfigSpec spec("tandem text " + verb, "text code of the router, as JSON lines");
  const bool needs_file = verb == "encode" || verb == "decode" || verb == "grammar";
  if (needs_file) spec.String("tokenizer", &file, "tokenizer.json, GGUF, .model or tekken file");
  if (verb == "render") spec.String("now", &now, "time for strftime_now, YYYY-MM-DDTHH:MM:SS");
  const auto outcome = spec.Parse(args, {});
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", std::string(outcome.status().message()).c_str());
    return kBadUsage;
  }
  if (*outcome == base::ConfigSpec::Outcome::kExitZero) return 0;
  if (needs_file) {
    if (file.empty()) {
      std::fprintf(stderr, "--tokenizer: give the file of the tokenizer\n");
      return kBadUsage;
    }
    return RunWithTokenizer(verb, file);
  }
  if (verb == "stop") return AnswerLines(Stop);
  const std::optional<int64_t> now_unix_s = ReadNow(now);
  if (!now_unix_s) {
    std::fprintf(stderr, "--now: %s is no time; allowed: YYYY-MM-DDTHH:MM:SS\n", now.c_str());
    return kBadUsage;
  }
  return AnswerLines([&](const Json& request) { return Render(*now_unix_s, request); });
}

}  // namespace

int RunText(const std::vector<std::string>& args) {
  if (args.empty()) {
    std::fputs(kUsage, stderr);
    return kBadUsage;
  }
  const std::string& verb = args[0];
  if (verb == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (verb != "encode" && verb != "decode" && verb != "render" && verb != "stop" &&
      verb != "grammar") {
    std::fprintf(stderr, "tandem text: unknown verb %s\n%s", verb.c_str(), kUsage);
    return kBadUsage;
  }
  return RunVerb(verb, {args.begin() + 1, args.end()});
}

}  // namespace tandem::cli
