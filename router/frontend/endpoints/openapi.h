#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/fleet/model_info.h"

namespace tandem::router {

// The OpenAPI 3.1 document of this server. Requests are described from the table by which they are
// read, so that the two cannot differ; limits that depend on the model are those of `models`.
std::string OpenApiDocument(const std::vector<std::shared_ptr<const ModelInfo>>& models);

}  // namespace tandem::router
