#include "router/frontend/output_choice.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "router/frontend/prompts.h"

namespace tandem::router {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

ModelInfo MakeModel() {
  tokenizer::TokenizerSpec spec;
  const std::string folder = TANDEM_TEST_DATA "/goldens/llama3-like";
  spec.kind = tokenizer::TokenizerSpec::Kind::kTokenizerJson;
  spec.file = ReadFile(folder + "/tokenizer.json");
  spec.tokenizer_config_json = ReadFile(folder + "/tokenizer_config.json");
  spec.chat_template =
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  ModelInfo model;
  model.served_names = {"m"};
  model.max_model_len = 64;
  model.vocab_size = 768;
  model.text = BuildModelText(spec).value();
  return model;
}

class OutputChoiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new ModelInfo(MakeModel()); }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  std::vector<int32_t> Ids(const std::string& text) {
    return model_->text->tokenizer->Encode(text, {}).value();
  }
  // One message per token; the last with `finish`.
  std::vector<v1::GenerateResponse> Messages(const std::vector<int32_t>& ids,
                                             v1::FinishReason finish) {
    std::vector<v1::GenerateResponse> messages;
    for (const int32_t id : ids) {
      v1::TokenOutput* token = messages.emplace_back().add_tokens();
      token->set_token_id(id);
      token->mutable_chosen()->set_token_id(id);
      token->mutable_chosen()->set_logprob(-1);
      token->add_top_logprobs()->set_token_id(id);
      token->mutable_top_logprobs(0)->set_logprob(-1);
    }
    messages.back().set_finish_reason(finish);
    if (finish == v1::FINISH_REASON_STOP) {
      messages.back().set_stop_token_id(ids.back());
    }
    return messages;
  }
  OutputChoice Choice() { return OutputChoice(0, &request_, model_->text.get(), &prompt_); }
  static Json Render(const ResponseHead& head, OutputChoice* choice) {
    std::string out;
    AppendChoice(head, choice->Take(), &out);
    return Json::parse(out);
  }
  void AddAll(OutputChoice* choice, const std::vector<v1::GenerateResponse>& messages) {
    for (const v1::GenerateResponse& message : messages) {
      choice->Add(message);
    }
  }

  static ModelInfo* model_;
  GenerationRequest request_;
  TokenizedPrompt prompt_{{1, 2, 3}, "abc"};
};
ModelInfo* OutputChoiceTest::model_ = nullptr;

TEST_F(OutputChoiceTest, AnEchoAloneHasNoTokens) {
  request_.echo = true;
  request_.echo_only = true;
  request_.logprobs = 0;
  request_.return_token_ids = true;
  OutputChoice choice = Choice();
  std::vector<v1::GenerateResponse> messages = Messages({7}, v1::FINISH_REASON_STOP);
  for (int i = 0; i < 3; ++i) {
    messages[0].add_prompt_logprobs();
  }
  AddAll(&choice, messages);
  EXPECT_TRUE(choice.finished());
  EXPECT_EQ(choice.completion_tokens(), 0);
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["text"], "abc");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(json["token_ids"], Json::array());
}

TEST_F(OutputChoiceTest, LengthEndsWithAllText) {
  OutputChoice choice = Choice();
  AddAll(&choice, Messages(Ids("hello world"), v1::FINISH_REASON_LENGTH));
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["text"], "hello world");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_TRUE(json["stop_reason"].is_null());
  EXPECT_TRUE(json["logprobs"].is_null());
  EXPECT_FALSE(json.contains("token_ids"));
}

TEST_F(OutputChoiceTest, StopTokenIsCountedButNotShown) {
  request_.return_token_ids = true;
  std::vector<int32_t> ids = Ids("hello");
  ids.push_back(model_->text->tokenizer->eos_id().value_or(764));
  OutputChoice choice = Choice();
  AddAll(&choice, Messages(ids, v1::FINISH_REASON_STOP));
  EXPECT_EQ(choice.completion_tokens(), static_cast<int64_t>(ids.size()));
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["text"], "hello");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["token_ids"].size(), ids.size());
  EXPECT_EQ(json["prompt_token_ids"], (Json{1, 2, 3}));
}

TEST_F(OutputChoiceTest, StopTokenIdOfTheRequestIsTheReason) {
  const std::vector<int32_t> ids = Ids("hello");
  request_.stop_token_ids = {ids.back()};
  OutputChoice choice = Choice();
  AddAll(&choice, Messages(ids, v1::FINISH_REASON_STOP));
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["stop_reason"], ids.back());
  EXPECT_NE(json["text"], "hello");
  request_.include_stop = true;
  OutputChoice kept = Choice();
  AddAll(&kept, Messages(ids, v1::FINISH_REASON_STOP));
  EXPECT_EQ(Render({Endpoint::kCompletions}, &kept)["text"], "hello");
}

TEST_F(OutputChoiceTest, StopStringCutsTextAndCount) {
  request_.stop = {"lo w"};
  OutputChoice choice = Choice();
  AddAll(&choice, Messages(Ids("hello world"), v1::FINISH_REASON_LENGTH));
  EXPECT_TRUE(choice.finished());
  EXPECT_TRUE(choice.stopped_by_text());
  EXPECT_LT(choice.completion_tokens(), static_cast<int64_t>(Ids("hello world").size()));
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["text"], "hel");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["stop_reason"], "lo w");
}

TEST_F(OutputChoiceTest, LegacyLogprobsAddUpWithEcho) {
  request_.logprobs = 1;
  request_.echo = true;
  prompt_.tokens = Ids("hello");
  prompt_.tokens.insert(prompt_.tokens.begin(), *model_->text->tokenizer->bos_id());
  prompt_.text = "hello";
  OutputChoice choice = Choice();
  std::vector<v1::GenerateResponse> messages = Messages(Ids(" world"), v1::FINISH_REASON_LENGTH);
  for (size_t i = 1; i < prompt_.tokens.size(); ++i) {  // without the first token's empty entry
    auto* entry = messages[0].add_prompt_logprobs();
    entry->mutable_actual()->set_token_id(prompt_.tokens[i]);
    entry->mutable_actual()->set_logprob(-2);
    entry->add_top_logprobs()->set_token_id(5);
  }
  AddAll(&choice, messages);
  const Json json = Render({Endpoint::kCompletions}, &choice);
  EXPECT_EQ(json["text"], "hello world");
  const Json& logprobs = json["logprobs"];
  std::string joined;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], joined.size());
    joined += logprobs["tokens"][i].get<std::string>();
  }
  EXPECT_EQ(joined, "hello world");
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1], -2);
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2u);
  EXPECT_EQ(logprobs["tokens"].size(), logprobs["top_logprobs"].size());
}

// Before each token, the characters that the tokens before it completed.
std::vector<int64_t> ExpectedOffsets(const tokenizer::Tokenizer& tokenizer,
                                     const std::vector<int32_t>& ids) {
  std::vector<int64_t> offsets;
  std::string bytes;  // all of it is valid, so that each character ends where the next begins
  for (const int32_t id : ids) {
    int64_t complete = 0;
    for (size_t at = 0; at < bytes.size();) {
      const auto lead = static_cast<unsigned char>(bytes[at]);
      at += lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      complete += at <= bytes.size() ? 1 : 0;
    }
    offsets.push_back(complete);
    bytes += tokenizer.TokenBytes(id);
  }
  return offsets;
}

TEST_F(OutputChoiceTest, TextOffsetsCountCharactersNotTokens) {
  request_.logprobs = 0;
  const std::string text =
      "a\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e"
      "b";  // a, 3 of 3 bytes, b
  const std::vector<int32_t> ids = Ids(text);
  ASSERT_GT(ids.size(), 5u);  // else no character is split
  const auto messages = Messages(ids, v1::FINISH_REASON_LENGTH);
  const auto expected = ExpectedOffsets(*model_->text->tokenizer, ids);
  EXPECT_EQ(expected.back(), 4);
  OutputChoice whole = Choice();
  AddAll(&whole, messages);
  EXPECT_EQ(Render({Endpoint::kCompletions}, &whole)["logprobs"]["text_offset"], Json(expected));
  request_.stream = true;
  OutputChoice stream = Choice();
  Json offsets = Json::array();
  for (const auto& message : messages) {
    stream.Add(message);
    const Json chunk = Render({Endpoint::kCompletions, true}, &stream);
    for (const Json& offset : chunk["logprobs"]["text_offset"]) {
      offsets.push_back(offset);
    }
  }
  EXPECT_EQ(offsets, Json(expected));
}

TEST_F(OutputChoiceTest, TextOffsetsOfAnEchoedPrompt) {
  request_.logprobs = 0;
  request_.echo = true;
  const std::vector<int32_t> ids = Ids("\xf0\x9f\x98\x80 hello");
  const std::vector<int64_t> in_prompt = ExpectedOffsets(*model_->text->tokenizer, ids);
  ASSERT_LT(in_prompt.back(), 7);
  const std::vector<int32_t> generated = Ids("\xc3\xa9!");
  const std::vector<int64_t> behind = ExpectedOffsets(*model_->text->tokenizer, generated);
  for (const bool as_ids : {false, true}) {
    GenerationRequest ask = request_;
    std::vector<int32_t> with_bos = ids;
    // Neither has text where ids are given.
    with_bos.insert(with_bos.begin(), 2, *model_->text->tokenizer->bos_id());
    ask.prompts = {as_ids ? Prompt(with_bos) : Prompt("\xf0\x9f\x98\x80 hello")};
    std::vector<TokenizedPrompt> prompts;
    ASSERT_FALSE(TokenizePrompts(ask, *model_, 0, &prompts));
    prompt_ = prompts[0];
    auto messages = Messages(generated, v1::FINISH_REASON_LENGTH);
    for (size_t i = 1; i < prompt_.tokens.size(); ++i) {
      messages[0].add_prompt_logprobs()->mutable_actual()->set_token_id(prompt_.tokens[i]);
    }
    std::vector<int64_t> expected = {0};  // the hidden start
    if (as_ids) {
      expected.push_back(0);
    }
    expected.insert(expected.end(), in_prompt.begin(), in_prompt.end());
    for (const int64_t offset : behind) {
      expected.push_back(7 + offset);
    }
    OutputChoice choice = Choice();
    AddAll(&choice, messages);
    const Json json = Render({Endpoint::kCompletions}, &choice);
    EXPECT_EQ(json["text"], "\xf0\x9f\x98\x80 hello\xc3\xa9!");
    EXPECT_EQ(json["logprobs"]["text_offset"], Json(expected)) << as_ids;
  }
}

TEST_F(OutputChoiceTest, ChatLogprobsHaveTheContentsBytes) {
  request_.endpoint = Endpoint::kChat;
  request_.logprobs = 1;
  std::vector<int32_t> ids = Ids("na\xc3\xafve \xf0\x9f\x98\x80");
  ids.push_back(*model_->text->tokenizer->bos_id());
  OutputChoice choice = Choice();
  AddAll(&choice, Messages(ids, v1::FINISH_REASON_STOP));
  const Json json = Render({Endpoint::kChat}, &choice);
  std::string bytes;
  for (const Json& entry : json["logprobs"]["content"]) {
    for (const Json& byte : entry["bytes"]) {
      bytes += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(entry["top_logprobs"].size(), 1u);
  }
  EXPECT_EQ(bytes, json["message"]["content"]);
  EXPECT_EQ(bytes, "na\xc3\xafve \xf0\x9f\x98\x80");
}

TEST_F(OutputChoiceTest, TokensAsIds) {
  request_.logprobs = 1;
  request_.return_tokens_as_token_ids = true;
  OutputChoice choice = Choice();
  AddAll(&choice, Messages({65}, v1::FINISH_REASON_LENGTH));
  const Json logprobs = Render({Endpoint::kCompletions}, &choice)["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "token_id:65");
  EXPECT_TRUE(logprobs["top_logprobs"][0].contains("token_id:65"));
}

TEST_F(OutputChoiceTest, AStreamsPartsJoin) {
  request_.stream = true;
  OutputChoice choice = Choice();
  std::string joined;
  for (const auto& message :
       Messages(Ids("caf\xc3\xa9 \xf0\x9f\x98\x80!"), v1::FINISH_REASON_LENGTH)) {
    choice.Add(message);
    if (choice.has_news()) {
      const Json json = Render({Endpoint::kCompletions, true}, &choice);
      joined += json["text"].get<std::string>();
    }
  }
  EXPECT_EQ(joined, "caf\xc3\xa9 \xf0\x9f\x98\x80!");
}

class PromptsTest : public OutputChoiceTest {};

TEST_F(PromptsTest, SpecialTokensCountInPromptsAndNotInMessages) {
  const std::string bos(model_->text->tokenizer->bos_text());
  const int32_t bos_id = *model_->text->tokenizer->bos_id();
  request_.prompts = {"a" + bos};
  std::vector<TokenizedPrompt> prompts;
  ASSERT_FALSE(TokenizePrompts(request_, *model_, 0, &prompts));
  EXPECT_EQ(std::count(prompts[0].tokens.begin(), prompts[0].tokens.end(), bos_id), 2);
  request_ = {};
  request_.endpoint = Endpoint::kChat;
  request_.messages = Json::array({{{"role", "user"}, {"content", "a" + bos}}});
  ASSERT_FALSE(TokenizePrompts(request_, *model_, 0, &prompts));
  EXPECT_EQ(std::count(prompts[0].tokens.begin(), prompts[0].tokens.end(), bos_id), 1);
}

TEST_F(PromptsTest, ContinueFinalMessageCutsBehindIt) {
  request_.endpoint = Endpoint::kChat;
  request_.continue_final_message = true;
  request_.messages = Json::array(
      {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", "The sea"}}});
  std::vector<TokenizedPrompt> prompts;
  ASSERT_FALSE(TokenizePrompts(request_, *model_, 0, &prompts));
  EXPECT_TRUE(prompts[0].text.ends_with("<assistant>The sea")) << prompts[0].text;
  EXPECT_EQ(model_->text->tokenizer->TokenBytes(prompts[0].tokens.back()).back(), 'a');
}

TEST_F(PromptsTest, TooLongPromptsAreRefusedByName) {
  std::vector<TokenizedPrompt> prompts;
  for (const std::string& text :
       {std::string(10'000, 'x'), std::string("a b c d e f g h ") + std::string(60, '\n') +
                                      "q q q q q q q q q q q q q q q q "
                                      "z z z z z z z z z z z z z z z z z z z z z z z z z z z z"}) {
    request_.prompts = {text};
    const ApiResult error = TokenizePrompts(request_, *model_, 0, &prompts);
    ASSERT_TRUE(error) << text.size();
    EXPECT_EQ(error->code, "context_length_exceeded");
    EXPECT_EQ(error->param, "prompt");
  }
}

TEST_F(PromptsTest, MaxTokens) {
  int32_t max_tokens = 0;
  ASSERT_FALSE(MaxTokensFor(request_, *model_, 10, &max_tokens));
  EXPECT_EQ(max_tokens, 16);
  ASSERT_FALSE(MaxTokensFor(request_, *model_, 60, &max_tokens));
  EXPECT_EQ(max_tokens, 4);
  request_.endpoint = Endpoint::kChat;
  ASSERT_FALSE(MaxTokensFor(request_, *model_, 10, &max_tokens));
  EXPECT_EQ(max_tokens, 54);
  request_.max_tokens = 55;
  EXPECT_TRUE(MaxTokensFor(request_, *model_, 10, &max_tokens));
  request_.max_tokens = 1'000'000'000;
  EXPECT_TRUE(CheckAgainstModel(request_, *model_));
}

TEST_F(PromptsTest, IdsOutsideTheVocabulary) {
  std::vector<TokenizedPrompt> prompts;
  request_.prompts = {std::vector<int32_t>{1, 768}};
  EXPECT_EQ(TokenizePrompts(request_, *model_, 0, &prompts)->param, "prompt");
  request_.logit_bias[768] = 1;
  EXPECT_EQ(CheckAgainstModel(request_, *model_)->param, "logit_bias");
  request_ = {};
  request_.stop_token_ids = {768};
  EXPECT_EQ(CheckAgainstModel(request_, *model_)->param, "stop_token_ids");
}

TEST_F(PromptsTest, EmptyPrompt) {
  std::vector<TokenizedPrompt> prompts;
  request_.add_special_tokens = false;
  request_.prompts = {""};
  EXPECT_EQ(TokenizePrompts(request_, *model_, 0, &prompts)->param, "prompt");
}

}  // namespace
}  // namespace tandem::router
