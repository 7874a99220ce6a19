#pragma once

#include <memory>

#include "router/policy/policy.h"

namespace tandem::router {

// Each worker in turn, in the order of their indexes, over whatever workers are there at the time.
std::unique_ptr<Policy> MakeRoundRobin();

}  // namespace tandem::router
