#include "cli/chat/conversation.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

TEST(ConversationTest, EachRequestHasTheWholeChat) {
  Conversation chat({"m", "Be short.", 0.5, 20});
  EXPECT_EQ(chat.Ask("One?"), (Json{{"model", "m"},
                                    {"stream", true},
                                    {"messages",
                                     {{{"role", "system"}, {"content", "Be short."}},
                                      {{"role", "user"}, {"content", "One?"}}}},
                                    {"temperature", 0.5},
                                    {"max_tokens", 20}}));
  chat.Answer("Yes.");
  const Json messages = chat.Ask("Two?")["messages"];
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[2], (Json{{"role", "assistant"}, {"content", "Yes."}}));
  EXPECT_EQ(messages[3]["content"], "Two?");
}

TEST(ConversationTest, AQuestionWithoutAnAnswerIsTakenBack) {
  Conversation chat({"m", "", {}, {}});
  chat.Ask("One?");
  chat.Answer("");
  EXPECT_EQ(chat.size(), 0u);
  EXPECT_EQ(chat.Ask("Two?")["messages"].size(), 1u);
}

TEST(ConversationTest, Retract) {
  Conversation chat({"m", "", {}, {}});
  EXPECT_EQ(chat.Retract(), "");
  chat.Ask("One?");
  chat.Answer("Yes.");
  chat.Ask("Two?");
  chat.Answer("No.");
  EXPECT_EQ(chat.Retract(), "Two?");
  EXPECT_EQ(chat.size(), 2u);
  chat.Clear();
  EXPECT_EQ(chat.size(), 0u);
}

}  // namespace
}  // namespace tandem::cli
