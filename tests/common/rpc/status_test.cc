#include "common/rpc/status.h"

#include <gtest/gtest.h>

#include <map>

namespace tandem::rpc {
namespace {

TEST(Status, CodesMessagesAndDetailsGoThereAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status = WithErrorDetail(
        absl::Status(static_cast<absl::StatusCode>(code), "why"), "max_tokens", "too_long");
    const grpc::Status sent = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(sent.error_code()), code);
    const absl::Status back = FromGrpcStatus(sent);
    EXPECT_EQ(back.raw_code(), code);
    EXPECT_EQ(back.message(), "why");
    ASSERT_TRUE(ErrorDetailOf(back).has_value());
    EXPECT_EQ(ErrorDetailOf(back)->param(), "max_tokens");
    EXPECT_EQ(ErrorDetailOf(back)->code(), "too_long");
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(Status, AnExplicitDetailWins) {
  v1::ErrorDetail detail;
  detail.set_param("stop");
  const grpc::Status sent =
      ToGrpcStatus(WithErrorDetail(absl::InvalidArgumentError("x"), "prompt"), detail);
  EXPECT_EQ(ErrorDetailOf(FromGrpcStatus(sent))->param(), "stop");
}

TEST(Status, NoDetailIsNoDetail) {
  EXPECT_FALSE(ErrorDetailOf(absl::InternalError("x")).has_value());
  EXPECT_FALSE(
      ErrorDetailOf(FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "x"))).has_value());
  EXPECT_TRUE(WithErrorDetail(absl::OkStatus(), "p").ok());
}

TEST(Status, GarbageFromAPeerIsDropped) {
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNKNOWN, "odd", "\xff\xff\xff"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_FALSE(ErrorDetailOf(status).has_value());
}

TEST(Status, LongMessagesAreCutToWhatTrailersCarry) {
  const grpc::Status sent = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_LE(sent.error_message().size(), 4096u);
}

TEST(Status, EachCodeHasItsHttpStatus) {
  const std::map<absl::StatusCode, int> table = {{absl::StatusCode::kOk, 200},
                                                 {absl::StatusCode::kCancelled, 499},
                                                 {absl::StatusCode::kUnknown, 500},
                                                 {absl::StatusCode::kInvalidArgument, 400},
                                                 {absl::StatusCode::kDeadlineExceeded, 504},
                                                 {absl::StatusCode::kNotFound, 404},
                                                 {absl::StatusCode::kResourceExhausted, 429},
                                                 {absl::StatusCode::kUnimplemented, 400},
                                                 {absl::StatusCode::kInternal, 500},
                                                 {absl::StatusCode::kUnavailable, 503},
                                                 {absl::StatusCode::kDataLoss, 500},
                                                 {absl::StatusCode::kUnauthenticated, 401}};
  for (const auto& [code, http] : table) {
    EXPECT_EQ(HttpStatusOf(absl::Status(code, "")), http) << absl::StatusCodeToString(code);
  }
}

}  // namespace
}  // namespace tandem::rpc
