#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

namespace tandem::router {

// A channel of its own to a worker (`host:port` or `unix:PATH`) that reconnects within a quarter of
// a second after the worker came back.
std::shared_ptr<grpc::Channel> MakeWorkerChannel(const std::string& address);

}  // namespace tandem::router
