#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tandem/v1/inference.pb.h"

// The one mapping between absl::Status, gRPC and HTTP. An ErrorDetail (which field, which code)
// travels as a payload of absl::Status and in the details of grpc::Status.
namespace tandem::rpc {

// `status` with an ErrorDetail; both may be empty.
absl::Status WithErrorDetail(absl::Status status, const std::string& param,
                             const std::string& code = "");
// What WithErrorDetail or FromGrpcStatus attached; nullopt when there is none.
std::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status);

// `detail` wins over one that the status carries.
grpc::Status ToGrpcStatus(const absl::Status& status,
                          const std::optional<v1::ErrorDetail>& detail = std::nullopt);
// Details that do not parse are dropped: they come from a peer.
absl::Status FromGrpcStatus(const grpc::Status& status);

// 200, 400, 401, 403, 404, 409, 429, 499, 500, 503 or 504.
int HttpStatusOf(const absl::Status& status);

}  // namespace tandem::rpc
