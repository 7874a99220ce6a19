// What the router adds to a one-token request that is not streamed: the same request in turn by
// HTTP through a router and by gRPC to the worker behind it, each over one connection.
// router_latency --http PORT --grpc ADDRESS [--requests N] [--prompt-tokens N]; one JSON line.

#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace {

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
}

bool Exchange(int fd, const std::string& request) {
  if (send(fd, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size())) {
    return false;
  }
  std::string reply;
  while (!reply.ends_with("}}}")) {  // how a completion's usage ends
    char bytes[4096];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) {
      return false;
    }
    reply.append(bytes, static_cast<size_t>(n));
  }
  return reply.starts_with("HTTP/1.1 200");
}

bool Generate(tandem::v1::Inference::Stub& stub, const tandem::v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  tandem::v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish().ok();
}

std::string HttpRequest(int64_t prompt_tokens) {
  std::string body = "{\"max_tokens\":1,\"temperature\":0,\"prompt\":[";
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    body += i > 0 ? ",5" : "5";
  }
  body += "]}";
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t port = 0;
  int64_t requests = 2000;
  int64_t prompt_tokens = 16;
  std::string grpc_address;
  tandem::base::ConfigSpec spec("router-latency", "Added latency of the router");
  spec.Int("http", &port, 1, 65535, "port of the router");
  spec.String("grpc", &grpc_address, "address of the worker behind it");
  spec.Int("requests", &requests, 1, 1'000'000, "requests each way");
  spec.Int("prompt-tokens", &prompt_tokens, 1, 100'000, "tokens of the prompt");
  if (const auto exit_status = spec.ParseMain(argc, argv)) {
    return *exit_status;
  }
  const auto stub = tandem::v1::Inference::NewStub(
      grpc::CreateChannel(grpc_address, grpc::InsecureChannelCredentials()));
  tandem::v1::GenerateRequest direct;
  direct.set_max_tokens(1);
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    direct.add_prompt_token_ids(5);
  }
  const std::string request = HttpRequest(prompt_tokens);
  const int fd = Connect(static_cast<int>(port));
  const tandem::base::Clock& clock = tandem::base::SystemClock();
  std::vector<double> by_http, by_grpc;
  const int64_t warm_up = requests / 10;
  for (int64_t i = 0; i < requests + warm_up; ++i) {
    const int64_t start_us = clock.NowUs();
    if (!Exchange(fd, request)) {
      std::fprintf(stderr, "router-latency: the router does not answer as it should\n");
      return 1;
    }
    const int64_t between_us = clock.NowUs();
    if (!Generate(*stub, direct)) {
      std::fprintf(stderr, "router-latency: the worker does not answer as it should\n");
      return 1;
    }
    if (i >= warm_up) {
      by_http.push_back(static_cast<double>(between_us - start_us));
      by_grpc.push_back(static_cast<double>(clock.NowUs() - between_us));
    }
  }
  close(fd);
  std::printf(
      "{\"http_p50_us\":%.0f,\"http_p99_us\":%.0f,\"grpc_p50_us\":%.0f,"
      "\"grpc_p99_us\":%.0f,\"added_p50_us\":%.0f,\"added_p99_us\":%.0f}\n",
      Percentile(by_http, 0.5), Percentile(by_http, 0.99), Percentile(by_grpc, 0.5),
      Percentile(by_grpc, 0.99), Percentile(by_http, 0.5) - Percentile(by_grpc, 0.5),
      Percentile(by_http, 0.99) - Percentile(by_grpc, 0.99));
}
