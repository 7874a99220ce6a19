#include "common/model_files/gguf_reader.h"

#include <cstring>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/model_writer.h"

namespace tandem::model_files {
namespace {

using fakes::GgufWriter;
using testing::HasSubstr;

absl::StatusOr<GgufFile> Parse(const std::string& bytes) {
  return GgufFile::Parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
                         "m.gguf");
}

void ExpectRefused(const std::string& bytes, const std::string& message) {
  const auto gguf = Parse(bytes);
  ASSERT_FALSE(gguf.ok()) << message;
  EXPECT_THAT(std::string(gguf.status().message()), HasSubstr(message));
  EXPECT_THAT(std::string(gguf.status().message()), HasSubstr("m.gguf: "));
}

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

GgufWriter Small() {
  GgufWriter writer;
  writer.UInt32("number", 7).Float32("real", 0.5f).Bool("flag", true).String("text", "abc");
  writer.Strings("list", {"x", "", "yz"}).Floats("reals", {1, 2}).Ints("ints", {-3, 4});
  writer.Tensor("t", {2, 3}, 0, fakes::EncodeF32({1, 2, 3, 4, 5, 6}));
  writer.Tensor("u", {1, 32}, 8, std::string(34, '\1'));
  return writer;
}

TEST(GgufReaderTest, ReadsEveryKindOfValue) {
  const std::string bytes = Small().Finish();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(**gguf->Int("number", 0, 10), 7);
  EXPECT_EQ(**gguf->Number("real"), 0.5);
  EXPECT_EQ(**gguf->Number("number"), 7.0);
  EXPECT_EQ(**gguf->Bool("flag"), true);
  EXPECT_EQ(**gguf->String("text"), "abc");
  EXPECT_EQ(*gguf->Strings("list"), (std::vector<std::string>{"x", "", "yz"}));
  EXPECT_EQ(*gguf->Floats("reals"), (std::vector<float>{1, 2}));
  EXPECT_EQ(*gguf->Ints("ints"), (std::vector<int32_t>{-3, 4}));
  EXPECT_FALSE(gguf->Int("absent", 0, 1)->has_value());
  EXPECT_TRUE(gguf->Strings("absent")->empty());
  const StoredTensor& tensor = gguf->tensors().at("t");
  EXPECT_EQ(tensor.dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensor.bytes, 24u);
  float last = 0;
  std::memcpy(&last, tensor.data + 20, 4);
  EXPECT_EQ(last, 6.0f);
  EXPECT_EQ(gguf->tensors().at("u").type, TensorType::kQ8_0);
}

TEST(GgufReaderTest, WrongTypesAndRangesAreErrors) {
  const std::string bytes = Small().Finish();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok());
  EXPECT_THAT(std::string(gguf->Int("number", 0, 6).status().message()),
              HasSubstr("m.gguf: number is 7; allowed: 0 to 6"));
  EXPECT_FALSE(gguf->Int("text", 0, 6).ok());
  EXPECT_FALSE(gguf->Int("real", 0, 6).ok());
  EXPECT_FALSE(gguf->Bool("number").ok());
  EXPECT_FALSE(gguf->String("number").ok());
  EXPECT_FALSE(gguf->Strings("reals").ok());
  EXPECT_FALSE(gguf->Floats("ints").ok());
  EXPECT_FALSE(gguf->Ints("list").ok());
  EXPECT_FALSE(gguf->Number("list").ok());
}

TEST(GgufReaderTest, EveryTruncationIsRefused) {
  const std::string bytes = Small().Finish();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size: address sanitizer sees any byte read past it.
    const std::string part(bytes.data(), size);
    EXPECT_FALSE(Parse(part).ok()) << size;
  }
}

TEST(GgufReaderTest, RefusesOtherContainers) {
  ExpectRefused("GGML" + std::string(60, '\0'), "magic");
  GgufWriter writer = Small();
  writer.version = 2;
  ExpectRefused(writer.Finish(), "version is 2");
  writer.version = 3u << 24;
  ExpectRefused(writer.Finish(), "big-endian");
}

TEST(GgufReaderTest, RefusesCountsAndLengthsThatExceedTheFile) {
  const std::string head = "GGUF" + Bytes(uint32_t{3});
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  ExpectRefused(head + Bytes(huge) + Bytes(uint64_t{0}), "tensor_count");
  ExpectRefused(head + Bytes(uint64_t{0}) + Bytes(huge), "metadata_kv_count");
  ExpectRefused(head + Bytes(uint64_t{0}) + Bytes(uint64_t{1}) + Bytes(huge) + std::string(64, 'a'),
                "metadata key 0 is");
  const std::string one = head + Bytes(uint64_t{0}) + Bytes(uint64_t{1}) + Bytes(uint64_t{1}) + "k";
  ExpectRefused(one + Bytes(uint32_t{8}) + Bytes(huge), "k is");
  ExpectRefused(one + Bytes(uint32_t{9}) + Bytes(uint32_t{4}) + Bytes(huge), "elements, more than");
  ExpectRefused(one + Bytes(uint32_t{9}) + Bytes(uint32_t{10}) + Bytes(huge / 8 + 1),
                "elements, more than");
  ExpectRefused(one + Bytes(uint32_t{9}) + Bytes(uint32_t{8}) + Bytes(huge / 8 + 2),
                "elements, more than");
  ExpectRefused(one + Bytes(uint32_t{13}) + std::string(16, '\0'), "unknown value type 13");
  ExpectRefused(one + Bytes(uint32_t{9}) + Bytes(uint32_t{99}) + Bytes(uint64_t{0}) + "    ",
                "unknown value type 99");
}

TEST(GgufReaderTest, RefusesDeepArrays) {
  std::string nested;
  for (int i = 0; i < 100; ++i) {
    nested += Bytes(uint32_t{9}) + Bytes(uint64_t{1});
  }
  ExpectRefused(GgufWriter().Raw("deep", 9, nested).Finish(), "nests arrays deeper");
}

TEST(GgufReaderTest, RefusesDuplicates) {
  ExpectRefused(GgufWriter().UInt32("k", 1).UInt32("k", 2).Finish(), "key k occurs twice");
  const std::string data(8, '\0');
  ExpectRefused(GgufWriter().Tensor("t", {2}, 0, data).Tensor("t", {2}, 0, data).Finish(),
                "tensor t occurs twice");
}

TEST(GgufReaderTest, RefusesAlignmentsThatAreNoPowerOfTwo) {
  for (const uint32_t alignment : {0u, 3u, 24u, 1u << 30}) {
    GgufWriter writer = Small();
    writer.UInt32("general.alignment", alignment);
    ExpectRefused(writer.Finish(), "general.alignment");
  }
  GgufWriter writer = Small();
  writer.UInt32("general.alignment", 64).alignment = 64;
  const std::string bytes = writer.Finish();
  EXPECT_TRUE(Parse(bytes).ok());
}

TEST(GgufReaderTest, RefusesTensorsOfImpossibleShapes) {
  const std::string data(64, '\0');
  const int64_t huge = std::numeric_limits<int64_t>::max();
  ExpectRefused(GgufWriter().Tensor("t", {0}, 0, data).Finish(), "dimension of 0");
  ExpectRefused(GgufWriter().Tensor("t", {-1}, 0, data).Finish(), "tensor t has a dimension");
  ExpectRefused(GgufWriter().Tensor("t", {huge}, 0, data).Finish(), "tensor t has a dimension");
  ExpectRefused(GgufWriter().Tensor("t", {1ll << 33, 1ll << 33}, 0, data).Finish(), "2^62");
  ExpectRefused(GgufWriter().Tensor("t", {1, 1, 1, 1, 2}, 0, data).Finish(), "5 dimensions");
  ExpectRefused(GgufWriter().Tensor("t", {}, 0, data).Finish(), "0 dimensions");
  ExpectRefused(GgufWriter().Tensor("t", {2, 31}, 8, data).Finish(), "multiple of its block of 32");
  ExpectRefused(GgufWriter().Tensor("t", {2, 128}, 12, data).Finish(), "block of 256");
  ExpectRefused(GgufWriter().Tensor("t", {2, 100}, 0, data).Finish(), "exceeds the file");
}

TEST(GgufReaderTest, RefusesUnknownTensorTypes) {
  for (const uint32_t type : {4u, 5u, 9u, 10u, 11u, 15u, 16u, 20u, 24u, 31u, 39u, 1000u}) {
    const auto gguf = Parse(GgufWriter().Tensor("t", {256}, type, std::string(512, 1)).Finish());
    ASSERT_FALSE(gguf.ok());
    EXPECT_EQ(gguf.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(gguf.status().message()), HasSubstr("tensor t has the tensor type"));
  }
}

TEST(GgufReaderTest, RefusesBadOffsets) {
  // The offset of tensor u is the last field of the directory, before padding.
  const std::string good = Small().Finish();
  const std::string field = Bytes(uint32_t{8}) + Bytes(uint64_t{32});
  const size_t at = good.find(field) + 4;
  ASSERT_NE(at, std::string::npos + 4);
  const struct {
    uint64_t offset;
    const char* message;
  } cases[] = {{33, "not a multiple of the alignment"},
               {64, "exceeds the file"},
               {~uint64_t{31}, "exceeds the file"},
               {uint64_t{1} << 63, "exceeds the file"},
               {0, "overlap"}};
  for (const auto& test : cases) {
    std::string bytes = good;
    bytes.replace(at, 8, Bytes(test.offset));
    ExpectRefused(bytes, test.message);
  }
}

}  // namespace
}  // namespace tandem::model_files
