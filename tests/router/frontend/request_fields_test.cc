#include "router/frontend/request_fields.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/strings.h"

namespace tandem::router {
namespace {

struct Case {
  Endpoint endpoint;
  const char* body;
  const char* param;  // null: accepted
};

constexpr Endpoint kText = Endpoint::kCompletions;
constexpr Endpoint kChat = Endpoint::kChat;
constexpr Endpoint kTokenize = Endpoint::kTokenize;
constexpr Endpoint kDetokenize = Endpoint::kDetokenize;
#define MESSAGES R"("messages":[{"role":"user","content":"x"}])"

const Case kCases[] = {
    // Prompts.
    {kText, R"({"prompt":"x"})", nullptr},
    {kText, R"({"prompt":["x","y"]})", nullptr},
    {kText, R"({"prompt":[1,2,3]})", nullptr},
    {kText, R"({"prompt":[[1,2],[3]]})", nullptr},
    {kText, R"({})", "prompt"},
    {kText, R"({"prompt":null})", "prompt"},
    {kText, R"({"prompt":[]})", "prompt"},
    {kText, R"({"prompt":5})", "prompt"},
    {kText, R"({"prompt":{}})", "prompt"},
    {kText, R"({"prompt":[-5]})", "prompt"},
    {kText, R"({"prompt":[1,"x"]})", "prompt"},
    {kText, R"({"prompt":["x",1]})", "prompt"},
    {kText, R"({"prompt":[[1],"x"]})", "prompt"},
    {kText, R"({"prompt":[[1.5]]})", "prompt"},
    {kText, R"({"prompt":[true]})", "prompt"},
    {kText, R"({"prompt":[99999999999]})", "prompt"},
    // Counts.
    {kText, R"({"prompt":"x","max_tokens":1})", nullptr},
    {kText, R"({"prompt":"x","max_tokens":5.0})", nullptr},
    {kText, R"({"prompt":"x","max_tokens":null})", nullptr},
    {kText, R"({"prompt":"x","max_tokens":0})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":-1})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":5.5})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":"ten"})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":true})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":1e300})", "max_tokens"},
    {kText, R"({"prompt":"x","max_tokens":[1]})", "max_tokens"},
    {kText, R"({"prompt":"x","min_tokens":5,"max_tokens":4})", "min_tokens"},
    {kText, R"({"prompt":"x","min_tokens":-1})", "min_tokens"},
    {kChat, R"({)" MESSAGES R"(,"max_completion_tokens":0})", "max_completion_tokens"},
    {kText, R"({"prompt":"x","n":0})", "n"},
    {kText, R"({"prompt":"x","n":10000})", "n"},
    {kText, R"({"prompt":"x","n":2,"best_of":2})", nullptr},
    {kText, R"({"prompt":"x","n":2,"best_of":1})", "best_of"},
    // Sampling.
    {kText, R"({"prompt":"x","temperature":0})", nullptr},
    {kText, R"({"prompt":"x","temperature":2})", nullptr},
    {kText, R"({"prompt":"x","temperature":5})", "temperature"},
    {kText, R"({"prompt":"x","temperature":-0.5})", "temperature"},
    {kText, R"({"prompt":"x","temperature":"hot"})", "temperature"},
    {kText, R"({"prompt":"x","top_p":0})", "top_p"},
    {kText, R"({"prompt":"x","top_p":1})", nullptr},
    {kText, R"({"prompt":"x","top_p":2})", "top_p"},
    {kText, R"({"prompt":"x","top_k":-1})", nullptr},
    {kText, R"({"prompt":"x","top_k":-2})", "top_k"},
    {kText, R"({"prompt":"x","min_p":1.1})", "min_p"},
    {kText, R"({"prompt":"x","repetition_penalty":0})", "repetition_penalty"},
    {kText, R"({"prompt":"x","presence_penalty":9})", "presence_penalty"},
    {kText, R"({"prompt":"x","frequency_penalty":-2.1})", "frequency_penalty"},
    {kText, R"({"prompt":"x","seed":-9223372036854775808})", nullptr},
    {kText, R"({"prompt":"x","seed":9223372036854775807})", nullptr},
    {kText, R"({"prompt":"x","seed":9223372036854775808})", "seed"},
    {kText, R"({"prompt":"x","logit_bias":{"5":100,"6":-100}})", nullptr},
    {kText, R"({"prompt":"x","logit_bias":{"5":101}})", "logit_bias"},
    {kText, R"({"prompt":"x","logit_bias":{"five":1}})", "logit_bias"},
    {kText, R"({"prompt":"x","logit_bias":{"-1":1}})", "logit_bias"},
    {kText, R"({"prompt":"x","logit_bias":[1]})", "logit_bias"},
    // Ends.
    {kText, R"({"prompt":"x","stop":"a"})", nullptr},
    {kText, R"({"prompt":"x","stop":["","a",""]})", nullptr},
    {kText,
     R"({"prompt":"x","stop":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]})",
     nullptr},
    {kText,
     R"({"prompt":"x","stop":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]})",
     "stop"},
    {kText, R"({"prompt":"x","stop":[1]})", "stop"},
    {kText, R"({"prompt":"x","stop":5})", "stop"},
    {kText, R"({"prompt":"x","stop_token_ids":[1,-1]})", "stop_token_ids"},
    {kText, R"({"prompt":"x","ignore_eos":1})", "ignore_eos"},
    // Streams.
    {kText, R"({"prompt":"x","stream":"yes"})", "stream"},
    {kText, R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true}})", nullptr},
    {kText, R"({"prompt":"x","stream":true,"stream_options":{"include_usage":1}})",
     "stream_options.include_usage"},
    {kText, R"({"prompt":"x","stream_options":{"include_usage":true}})", "stream_options"},
    {kText, R"({"prompt":"x","stream":true,"prompt_logprobs":1})", "prompt_logprobs"},
    // Logprobs.
    {kText, R"({"prompt":"x","logprobs":20})", nullptr},
    {kText, R"({"prompt":"x","logprobs":-1})", "logprobs"},
    {kText, R"({"prompt":"x","logprobs":21})", "logprobs"},
    {kText, R"({"prompt":"x","logprobs":true})", "logprobs"},
    {kChat, R"({)" MESSAGES R"(,"logprobs":true,"top_logprobs":5})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"top_logprobs":5})", "top_logprobs"},
    {kChat, R"({)" MESSAGES R"(,"logprobs":true,"top_logprobs":99})", "top_logprobs"},
    {kChat, R"({)" MESSAGES R"(,"logprobs":5})", "logprobs"},
    // Not served.
    {kText, R"({"prompt":"x","suffix":"y"})", "suffix"},
    {kText, R"({"prompt":"x","suffix":""})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"tools":[{"type":"function"}]})", "tools[0].function"},
    {kChat,
     R"({)" MESSAGES
     R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"})",
     nullptr},
    {kChat, R"({)" MESSAGES R"(,"tools":[]})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"tool_choice":"required"})", "tool_choice"},
    {kChat, R"({)" MESSAGES R"(,"response_format":{"type":"text"}})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"response_format":{"type":"json_object"}})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"response_format":{"type":"xml"}})", "response_format"},
    {kChat, R"({)" MESSAGES R"(,"response_format":{"type":"json_schema"}})", "response_format"},
    {kChat,
     R"({)" MESSAGES
     R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}})",
     nullptr},
    {kText, R"({"prompt":"x","structured_outputs":{"regex":"a+"}})", nullptr},
    {kText, R"({"prompt":"x","structured_outputs":{"choice":["a","b"]}})", nullptr},
    {kText, R"({"prompt":"x","structured_outputs":{"choice":["a",1]}})", "structured_outputs"},
    {kText, R"({"prompt":"x","structured_outputs":{"json":"{"}})", "structured_outputs"},
    {kText, R"({"prompt":"x","structured_outputs":{"json":{},"regex":"a"}})", "structured_outputs"},
    {kText, R"({"prompt":"x","structured_outputs":{"whitespace_pattern":"a"}})",
     "structured_outputs"},
    {kText, R"({"prompt":"x","structured_outputs":{}})", nullptr},
    {kText, R"({"prompt":"x","guided_json":"{\"type\":\"object\"}"})", nullptr},
    {kText, R"({"prompt":"x","guided_grammar":""})", "guided_grammar"},
    {kText, R"({"prompt":"x","guided_regex":"a","guided_choice":["b"]})", "guided_choice"},
    {kChat, R"({)" MESSAGES R"(,"response_format":7})", "response_format"},
    {kChat, R"({)" MESSAGES R"(,"modalities":["text","audio"]})", "modalities"},
    {kChat, R"({)" MESSAGES R"(,"audio":{"voice":"x"}})", "audio"},
    {kText, R"({"prompt":"x","use_beam_search":false})", nullptr},
    {kText, R"({"prompt":"x","use_beam_search":true})", "use_beam_search"},
    // Messages.
    {kChat, R"({})", "messages"},
    {kChat, R"({"messages":[]})", "messages"},
    {kChat, R"({"messages":"hello"})", "messages"},
    {kChat, R"({"messages":["x"]})", "messages[0]"},
    {kChat, R"({"messages":[{"role":"nobody","content":"x"}]})", "messages[0]"},
    {kChat, R"({"messages":[{"content":"x"}]})", "messages[0]"},
    {kChat, R"({"messages":[{"role":"user","content":"x"},{"role":"user"}]})", "messages[1]"},
    {kChat, R"({"messages":[{"role":"user","content":5}]})", "messages[0]"},
    {kChat, R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"tools":[{"function":{"name":"f"}}]})", nullptr},
    {kChat, R"({"messages":[{"role":"tool","content":"a","tool_call_id":5}]})", "messages[0]"},
    {kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
     "messages[0]"},
    {kChat, R"({"messages":[{"role":"user","content":[5]}]})", "messages[0]"},
    {kChat, R"({"messages":[{"role":"assistant","content":null}]})", "messages[0]"},
    {kChat,
     R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]}]})",
     nullptr},
    {kChat, R"({)" MESSAGES R"(,"add_generation_prompt":true,"continue_final_message":true})",
     "continue_final_message"},
    {kChat, R"({)" MESSAGES R"(,"continue_final_message":true})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"chat_template_kwargs":[]})", "chat_template_kwargs"},
    {kChat, R"({)" MESSAGES R"(,"chat_template_kwargs":{"add_generation_prompt":false}})", nullptr},
    {kChat, R"({)" MESSAGES R"(,"chat_template_kwargs":{"add_generation_prompt":"no"}})",
     "chat_template_kwargs.add_generation_prompt"},
    {kChat,
     R"({)" MESSAGES
     R"(,"chat_template_kwargs":{"add_generation_prompt":true},"continue_final_message":true})",
     "continue_final_message"},
    {kChat, R"({)" MESSAGES R"(,"chat_template":"x"})", "chat_template"},
    // Tokenize and detokenize.
    {kTokenize, R"({"prompt":"x"})", nullptr},
    {kTokenize, R"({"content":"x"})", nullptr},
    {kTokenize, R"({)" MESSAGES R"(})", nullptr},
    {kTokenize, R"({)" MESSAGES R"(,"tools":[{"type":"function","function":{"name":"f"}}]})",
     nullptr},
    {kTokenize, R"({)" MESSAGES R"(,"tools":[1]})", "tools[0]"},
    {kTokenize, R"({)" MESSAGES R"(,"enable_thinking":false})", nullptr},
    {kTokenize, R"({)" MESSAGES R"(,"enable_thinking":"no"})", "enable_thinking"},
    {kTokenize, R"({})", "prompt"},
    {kTokenize, R"({"prompt":[1]})", "prompt"},
    {kTokenize, R"({"prompt":["a","b"]})", "prompt"},
    {kTokenize, R"({"content":["a","b"]})", "content"},
    {kTokenize, R"({"content":7})", "content"},
    {kDetokenize, R"({"tokens":[1,2]})", nullptr},
    {kDetokenize, R"({"tokens":[]})", nullptr},
    {kDetokenize, R"({"tokens":"x"})", "tokens"},
    {kDetokenize, R"({})", "tokens"},
    // Others.
    {kText, R"({"prompt":"x","model":5})", "model"},
    {kText, R"({"prompt":"x","user":"me","metadata":{"a":"1"}})", nullptr},
    {kText, R"([1,2])", ""},
};

ApiResult Read(Endpoint endpoint, const std::string& text, GenerationRequest* request,
               std::vector<std::string>* unknown = nullptr) {
  Json body;
  if (ApiResult error = ParseJson(text, &body)) {
    return error;
  }
  request->endpoint = endpoint;
  return ReadRequest(body, request, [&](std::string_view name) {
    if (unknown != nullptr) {
      unknown->emplace_back(name);
    }
  });
}

TEST(RequestFieldsTest, EveryCaseOfTheTable) {
  for (const Case& c : kCases) {
    GenerationRequest request;
    const ApiResult error = Read(c.endpoint, c.body, &request);
    if (c.param == nullptr) {
      EXPECT_FALSE(error) << c.body << ": " << error->message;
      continue;
    }
    ASSERT_TRUE(error) << c.body;
    EXPECT_EQ(error->http_status, 400) << c.body;
    EXPECT_EQ(error->param, c.param) << c.body << ": " << error->message;
    EXPECT_LT(error->message.size(), 300u) << c.body;
    EXPECT_EQ(error->message.back(), '.') << c.body;
  }
}

TEST(RequestFieldsTest, ValuesArrive) {
  GenerationRequest request;
  ASSERT_FALSE(Read(kText,
                    R"({"model":"m","prompt":["a","b"],"n":2,"max_tokens":7.0,"temperature":0.5,
                    "top_k":3,"seed":-4,"stop":["","x"],"logit_bias":{"5":-1.5},"logprobs":0,
                    "stream":true,"stream_options":{"include_usage":true},"echo":true,
                    "stop_token_ids":[9],"ignore_eos":true,"skip_special_tokens":false})",
                    &request));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(request.prompts[1]), "b");
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.temperature, 0.5);
  EXPECT_EQ(request.top_k, 3);
  EXPECT_EQ(request.seed, -4);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.logit_bias.at(5), -1.5F);
  EXPECT_EQ(request.logprobs, 0);
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.ignore_eos);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(request.stop_token_ids, std::vector<int32_t>{9});
}

TEST(RequestFieldsTest, SpecialValuesAreReadAsPeersReadThem) {
  GenerationRequest request;
  ASSERT_FALSE(Read(kText, R"({"prompt":"x","seed":-1,"max_tokens":0,"echo":true})", &request));
  EXPECT_FALSE(request.seed.has_value());
  EXPECT_TRUE(request.echo_only);
  EXPECT_EQ(request.max_tokens, 1);
  GenerationRequest chat;
  ASSERT_FALSE(Read(kChat,
                    R"({"messages":[{"role":"user","content":["a",{"type":"input_text","text":"b"},
                    {"text":"c"}]},{"role":"assistant",
                    "content":[{"type":"refusal","refusal":"d"}]}]})",
                    &chat));
  EXPECT_EQ(chat.messages[0]["content"], "a\nb\nc");
  EXPECT_EQ(chat.messages[1]["content"], "d");
}

TEST(RequestFieldsTest, ChatValuesArrive) {
  GenerationRequest request;
  ASSERT_FALSE(Read(kChat,
                    R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},
                    {"type":"text","text":"b"}]},{"role":"user","content":"x","name":"n"}],
                    "max_completion_tokens":3,"max_tokens":9,"logprobs":true,"top_logprobs":2})",
                    &request));
  EXPECT_EQ(request.messages[0]["role"], "system");
  EXPECT_EQ(request.messages[0]["content"], "a\nb");
  EXPECT_EQ(request.messages[1]["name"], "n");
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.logprobs, 2);
}

TEST(RequestFieldsTest, UnknownFieldsAreReportedAndIgnored) {
  GenerationRequest request;
  std::vector<std::string> unknown;
  ASSERT_FALSE(Read(kText, R"({"prompt":"x","brand_new":1,"messages":[]})", &request, &unknown));
  EXPECT_EQ(unknown, std::vector<std::string>{"brand_new"});
}

TEST(RequestFieldsTest, TooManyChoices) {
  GenerationRequest request;
  std::string body = R"({"n":128,"prompt":["x")";
  for (int i = 0; i < 8; ++i) {
    body += ",\"x\"";
  }
  const ApiResult error = Read(kText, body + "]}", &request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "n");
}

TEST(ParseJsonTest, RefusesWhatIsNoJson) {
  Json json;
  for (const char* text : {"", "  ", "{not json", "{\"a\":1", "{\"a\":1}x", "{\"a\":\"\xff\"}",
                           "{\"a\":\"\\ud800\"}", "{\"a\":1e999}", "nul", "{'a':1}"}) {
    const ApiResult error = ParseJson(text, &json);
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->http_status, 400);
  }
}

TEST(ParseJsonTest, BoundsDepthAndMembers) {
  Json json;
  EXPECT_FALSE(ParseJson(std::string(100, '[') + std::string(100, ']'), &json));
  EXPECT_TRUE(ParseJson(std::string(101, '[') + std::string(101, ']'), &json));
  EXPECT_TRUE(ParseJson(std::string(1'000'000, '['), &json));
  const std::string brackets(1000, '[');
  EXPECT_FALSE(ParseJson(base::StrCat("\"", brackets, "\""), &json));
  std::string wide = "{\"a\":1";
  for (int i = 0; i < 10'000; ++i) {
    base::StrAppend(&wide, ",\"", i, "\":1");
  }
  EXPECT_TRUE(ParseJson(wide + "}", &json));
}

TEST(JsonTextTest, StringsAreEscapedAndRepaired) {
  std::string out;
  AppendJsonString("a\"\\\n\x01\xc3\xa9\xff", &out);
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\xef\xbf\xbd\"");
  EXPECT_EQ(Json::parse(out).get<std::string>(), "a\"\\\n\x01\xc3\xa9\xef\xbf\xbd");
}

TEST(JsonTextTest, FloatsStayJson) {
  for (const float value : {0.0F, -0.5F, 1e-20F, -std::numeric_limits<float>::infinity()}) {
    std::string out;
    AppendJsonFloat(value, &out);
    EXPECT_TRUE(Json::accept(out)) << out;
  }
}

TEST(JsonTextTest, ErrorBodyHasOpenAisShape) {
  const Json body = Json::parse(ErrorBody({404, "a \"b\"", "model", ""}));
  EXPECT_EQ(body["error"]["message"], "a \"b\"");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["param"], "model");
  EXPECT_TRUE(body["error"]["code"].is_null());
}

}  // namespace
}  // namespace tandem::router
