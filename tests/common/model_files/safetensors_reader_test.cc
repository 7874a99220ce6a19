#include "common/model_files/safetensors_reader.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/model_writer.h"

namespace tandem::model_files {
namespace {

using testing::HasSubstr;

absl::StatusOr<TensorTable> Parse(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
                          "w.safetensors");
}

std::string Entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return "{\"a\": {\"dtype\": \"" + type + "\", \"shape\": " + shape +
         ", \"data_offsets\": " + offsets + "}}";
}

TEST(SafetensorsReaderTest, ReadsTensorsOfEveryTypeAtAnyAlignment) {
  for (const std::string type : {"F32", "F16", "BF16"}) {
    for (int padding = 0; padding < 4; ++padding) {
      const std::string bytes = fakes::SafetensorsBytes(
          {{"a", {2, 3}, {1, -2, 3, 0.5f, -0.25f, 0}}, {"b", {2}, {4, 5}}}, type, padding);
      const auto tensors = Parse(bytes);
      ASSERT_TRUE(tensors.ok()) << tensors.status();
      const StoredTensor& a = tensors->at("a");
      EXPECT_EQ(a.dims, (std::vector<int64_t>{2, 3}));
      WeightView view;
      view.type = a.type;
      view.rows = 2;
      view.cols = 3;
      view.row_bytes = static_cast<int64_t>(a.bytes / 2);
      view.data = a.data;
      std::vector<float> out(6);
      ReadRows(view, 0, 2, out.data());
      EXPECT_EQ(out, (std::vector<float>{1, -2, 3, 0.5f, -0.25f, 0})) << type << padding;
    }
  }
}

TEST(SafetensorsReaderTest, EveryTruncationIsRefused) {
  const std::string bytes = fakes::SafetensorsBytes({{"a", {2, 3}, {1, 2, 3, 4, 5, 6}}}, "F32");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Parse(bytes.substr(0, size)).ok()) << size;
  }
}

TEST(SafetensorsReaderTest, RefusesHostileHeaders) {
  const struct {
    std::string header;
    std::string message;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{\"a\": 1}", "tensor a is not an object"},
      {Entry("I64", "[1]", "[0, 8]"), "dtype is I64"},
      {Entry("F8_E4M3", "[1]", "[0, 1]"), "supported: F32, F16, BF16"},
      {Entry("F32", "[2]", "[0, 4]"), "span 4 bytes"},
      {Entry("F32", "[2]", "[4, 12]"), "end at 12 of 8"},
      {Entry("F32", "[2]", "[8, 0]"), "not two rising positions"},
      {Entry("F32", "[2]", "[0]"), "not a pair"},
      {Entry("F32", "[2]", "[-8, 0]"), "not two rising positions"},
      {Entry("F32", "[2.5]", "[0, 8]"), "something else than sizes"},
      {Entry("F32", "[-2]", "[0, 8]"), "something else than sizes"},
      {Entry("F32", "[0]", "[0, 0]"), "dimension of 0"},
      {Entry("F32", "[18446744073709551615]", "[0, 8]"), "something else than sizes"},
      {Entry("F32", "[1099511627776, 1099511627776]", "[0, 8]"), "larger than 2^62"},
      {Entry("F32", "[4294967296, 4294967296, 4]", "[0, 8]"), "larger than 2^62"},
      {Entry("F32", "[1, 1, 1, 1, 2]", "[0, 8]"), "5 dimensions"},
      {Entry("F32", "[]", "[0, 4]"), "0 dimensions"},
      {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
       "\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
       "key a occurs twice"},
      {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, "
       "\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
       "overlap"},
      {Entry("F32", "[1]", "[0, 4]"), "cover 4 of 8 bytes"},
      {Entry("F32", "[1]", "[4, 8]"), "cover 4 of 8 bytes"},
      {"{}", "cover 0 of 8 bytes"},
      {std::string(5000, '['), "nests deeper"},
      {"{\"a\": \"\xff\"}", "not a JSON object"},
  };
  for (const auto& test : cases) {
    const auto tensors = Parse(fakes::SafetensorsOf(test.header, std::string(8, '\0')));
    ASSERT_FALSE(tensors.ok()) << test.header.substr(0, 200);
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(test.message));
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr("w.safetensors"));
  }
}

TEST(SafetensorsReaderTest, RefusesHeaderLengthsThatOverflow) {
  for (const uint64_t length : {~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 40, uint64_t{3}}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_FALSE(Parse(bytes + "{}").ok()) << length;
  }
}

}  // namespace
}  // namespace tandem::model_files
