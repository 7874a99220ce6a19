#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "router/frontend/field_table.h"
#include "tests/contract/router/router_fixture.h"

namespace tandem::router {
namespace {

struct Row {
  std::string method, path, body;
  int status = 0;
  Json error;
};

// One refused request per line, with the answer that it gets.
std::vector<Row> ReadRows() {
  std::ifstream file(TANDEM_TEST_DATA "/router/error_messages.jsonl");
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    rows.push_back({json["method"], json["path"], json["body"], json["status"], json["error"]});
  }
  return rows;
}

// Every error message that a request's content can bring about.
TEST_F(RouterFixture, ErrorMessages) {
  AddWorker();
  StartRouter();
  const std::vector<Row> rows = ReadRows();
  ASSERT_GT(rows.size(), 200u);
  for (const Row& row : rows) {
    HttpClient client(router_->port());
    const HttpReply reply = client.Request(row.method, row.path, row.body);
    const std::string shown = row.path + " " + row.body.substr(0, 200);
    EXPECT_EQ(reply.status, row.status) << shown << ": " << reply.body;
    EXPECT_EQ(reply.json().value("error", Json()), row.error) << shown;
  }
}

TEST(ErrorMessagesTest, EveryFieldThatCanBeWrongIsThere) {
  std::set<std::string> fields;
  for (const Row& row : ReadRows()) {
    const Json param = row.error["param"];
    if (param.is_string()) {
      const std::string name = param.get<std::string>();
      fields.insert(name.substr(0, name.find_first_of(".[")));
    }
  }
  for (const Field& field : AllFields()) {
    const auto* ignored = std::get_if<Ignored>(&field.kind);
    if (ignored == nullptr || ignored->fits != nullptr) {
      EXPECT_TRUE(fields.contains(std::string(field.name))) << field.name;
    }
  }
}

TEST(ErrorMessagesTest, AreShortAndSayWhatIsAllowed) {
  for (const Row& row : ReadRows()) {
    const std::string message = row.error["message"];
    EXPECT_LE(message.size(), 300u) << message;
    EXPECT_TRUE(message.ends_with(".")) << message;
  }
}

}  // namespace
}  // namespace tandem::router
