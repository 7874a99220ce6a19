#include "common/rpc/status.h"

#include "absl/strings/cord.h"

namespace tandem::rpc {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/tandem.v1.ErrorDetail";
// What gRPC takes as trailing metadata by default is 8 KiB in all.
constexpr size_t kMaxMessageBytes = 2048;

}  // namespace

absl::Status WithErrorDetail(absl::Status status, const std::string& param,
                             const std::string& code) {
  if (status.ok()) {
    return status;
  }
  v1::ErrorDetail detail;
  detail.set_param(param);
  detail.set_code(code);
  status.SetPayload(kDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

std::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailUrl);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) {
    return std::nullopt;
  }
  return detail;
}

grpc::Status ToGrpcStatus(const absl::Status& status,
                          const std::optional<v1::ErrorDetail>& detail) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  const std::optional<v1::ErrorDetail> attached = detail ? detail : ErrorDetailOf(status);
  // Both enumerations are the canonical codes 0 to 16.
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message().substr(0, kMaxMessageBytes)),
                      attached ? attached->SerializeAsString() : "");
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const int code = static_cast<int>(status.error_code());
  absl::Status result(
      code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      status.error_message());
  v1::ErrorDetail detail;
  if (!status.error_details().empty() && detail.ParseFromString(status.error_details())) {
    result.SetPayload(kDetailUrl, absl::Cord(status.error_details()));
  }
  return result;
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:  // a field that we do not serve
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace tandem::rpc
