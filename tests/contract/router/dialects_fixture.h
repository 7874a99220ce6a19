#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "tests/contract/router/router_fixture.h"

namespace tandem::router {

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

inline const Json kWeather = {{"name", "get_weather"},
                              {"description", "Weather of a city"},
                              {"parameters",
                               {{"type", "object"},
                                {"properties", {{"city", {{"type", "string"}}}}},
                                {"required", {"city"}}}}};

// A worker that says what the test puts into its mouth, token by token, and how each dialect of the
// API tells it.
class DialectsTest : public RouterFixture {
 protected:
  static constexpr char kCall[] =
      "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Oslo\"}}\n</tool_call>";

  void Start(const std::string& chat_template = "") {
    fakes::FakeWorker::Options options = WorkerOptions();
    if (!chat_template.empty()) {
      options.chat_template = chat_template;
    }
    worker_ = &AddWorker(options);
    StartRouter();
    tokenizer::TokenizerSpec spec;
    spec.kind = tokenizer::TokenizerSpec::Kind::kTokenizerJson;
    spec.file = ReadFile(options.tokenizer_folder + "/tokenizer.json");
    spec.tokenizer_config_json = ReadFile(options.tokenizer_folder + "/tokenizer_config.json");
    tokenizer_ = tokenizer::Tokenizer::Create(spec).value();
  }

  // The worker ends with reason `finish`.
  void Say(const std::string& text, v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    const std::vector<int32_t> ids = tokenizer_->Encode(text, {}).value();
    worker_->SetScript([ids, finish](fakes::FakeCall& call) {
      v1::GenerateResponse response;
      for (const int32_t id : ids) {
        response.Clear();
        response.add_tokens()->set_token_id(id);
        call.Write(response);
      }
      response.Clear();
      response.set_finish_reason(finish);
      response.mutable_usage()->set_prompt_tokens(call.request().prompt_token_ids_size());
      response.mutable_usage()->set_completion_tokens(static_cast<int32_t>(ids.size()));
      call.Write(response);
      return grpc::Status::OK;
    });
  }

  // The text that the worker was asked to go on with.
  std::string LastPrompt() {
    const v1::GenerateRequest request = worker_->requests().back();
    std::string text;
    for (const int32_t id : request.prompt_token_ids()) {
      text += tokenizer_->TokenBytes(id);
    }
    return text;
  }

  // Events of a stream, as (name, data).
  std::vector<std::pair<std::string, Json>> Events(const std::string& path, Json body) {
    body["stream"] = true;
    HttpClient client(router_->port());
    client.SendRequest("POST", path, body.dump());
    EXPECT_EQ(client.ReadHead().status, 200);
    std::vector<std::pair<std::string, Json>> events;
    while (const auto event = client.ReadEvent()) {
      if (*event != "[DONE]") {
        events.emplace_back(client.event_name(), Json::parse(*event));
      }
    }
    EXPECT_TRUE(client.ended_properly());
    return events;
  }

  static Json Chat(const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Weather in Oslo?"}}}}};
    body.update(more);
    return body;
  }
  static Json WithTool(const Json& more = Json::object()) {
    Json body = Chat({{"tools", Json::array({{{"type", "function"}, {"function", kWeather}}})}});
    body.update(more);
    return body;
  }

  fakes::FakeWorker* worker_ = nullptr;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

}  // namespace tandem::router
