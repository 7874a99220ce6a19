#include "router/frontend/template_traits.h"

#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "router/frontend/model_text.h"

namespace tandem::router {
namespace {

using tool_calls::Format;

TemplateTraits TraitsOf(const std::string& source) {
  return FindTraits(*chat_template::ChatTemplate::Parse(source).value(), source, 0);
}

constexpr char kPlain[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

TEST(TemplateTraitsTest, WhatAPlainTemplateKnows) {
  const TemplateTraits traits = TraitsOf(kPlain);
  EXPECT_FALSE(traits.knows_tools);
  EXPECT_TRUE(traits.knows_system);
  EXPECT_FALSE(traits.reasoning);
  EXPECT_EQ(traits.problem, "");
}

TEST(TemplateTraitsTest, ToolsThatReachTheText) {
  const std::string tools = "{% if tools %}{{ tools | tojson }}{% endif %}";
  EXPECT_TRUE(TraitsOf(tools + kPlain).knows_tools);
  // Named, but not shown.
  EXPECT_FALSE(TraitsOf(base::StrCat("{% if tools %}Tools!{% endif %}", kPlain)).knows_tools);
  EXPECT_EQ(TraitsOf(tools + kPlain).tool_format, Format::kHermes);
  EXPECT_EQ(TraitsOf(tools + "[TOOL_CALLS]").tool_format, Format::kMistral);
  EXPECT_EQ(TraitsOf(tools + "<|python_tag|>").tool_format, Format::kLlama3);
  EXPECT_EQ(TraitsOf(tools + "<tool_call>").tool_format, Format::kHermes);
}

TEST(TemplateTraitsTest, ATemplateThatRefusesSystemMessages) {
  const TemplateTraits traits = TraitsOf(
      base::StrCat("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
                   "{% endif %}",
                   kPlain));
  EXPECT_FALSE(traits.knows_system);
  EXPECT_EQ(traits.problem, "");
}

TEST(TemplateTraitsTest, Reasoning) {
  EXPECT_TRUE(TraitsOf(base::StrCat(kPlain, "{# </think> #}")).reasoning);
}

TEST(CheckChatTemplateTest, NamesLineAndCause) {
  EXPECT_TRUE(CheckChatTemplate(kPlain, 0).ok());
  EXPECT_TRUE(CheckChatTemplate("{{ raise_exception('needs more') }}", 0).ok());
  const absl::Status syntax = CheckChatTemplate("a\nb\n{% for %}", 0);
  EXPECT_NE(syntax.message().find("line 3"), std::string::npos) << syntax;
  const absl::Status filter = CheckChatTemplate("a\n{{ messages | nothing }}", 0);
  EXPECT_NE(filter.message().find("line 2"), std::string::npos) << filter;
  EXPECT_NE(filter.message().find("nothing"), std::string::npos) << filter;
}

}  // namespace
}  // namespace tandem::router
