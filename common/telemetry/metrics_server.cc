// A small HTTP server on one thread: prometheus-cpp's own cannot answer /health and /ready.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>
#include <thread>

#include "common/base/strings.h"
#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr int kMaxConnections = 64;
constexpr std::chrono::seconds kIdleTimeout(30);
constexpr std::chrono::seconds kAcceptRetry(1);
constexpr uint64_t kMaxRequestBytes = 4096;

struct Endpoints {
  Registry* registry;
  std::function<bool()> healthy;
  std::function<bool()> ready;
};

using Request = http::request<http::string_body>;
using Response = http::response<http::string_body>;

Response Answer(const Endpoints& endpoints, const Request& request) {
  Response response;
  response.version(request.version());
  response.keep_alive(request.keep_alive());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  const std::string target(request.target().substr(0, request.target().find('?')));
  const auto probe = [&](bool good, const char* yes, const char* no) {
    response.result(good ? http::status::ok : http::status::service_unavailable);
    response.body() = good ? yes : no;
  };
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
  } else if (target == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = endpoints.registry->Render();
  } else if (target == "/health") {
    probe(endpoints.healthy(), "ok\n", "no progress\n");
  } else if (target == "/ready") {
    probe(endpoints.ready(), "ready\n", "not ready\n");
  } else {
    response.result(http::status::not_found);
    response.body() = "there are /metrics, /health and /ready\n";
  }
  response.prepare_payload();
  if (request.method() == http::verb::head) {
    response.body().clear();
  }
  return response;
}

// One connection; owned by its pending operation.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, const Endpoints* endpoints, std::shared_ptr<int> open)
      : stream_(std::move(socket)), endpoints_(endpoints), open_(std::move(open)) {
    ++*open_;
  }
  ~Session() { --*open_; }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMaxRequestBytes);
    parser_->body_limit(kMaxRequestBytes);
    stream_.expires_after(kIdleTimeout);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       if (!error) {
                         self->Write();
                       }
                     });
  }

 private:
  void Write() {
    response_ = Answer(*endpoints_, parser_->get());
    stream_.expires_after(kIdleTimeout);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code error, size_t) {
                        if (!error && self->response_.keep_alive()) {
                          self->Read();
                        }
                      });
  }

  beast::tcp_stream stream_;
  const Endpoints* endpoints_;
  std::shared_ptr<int> open_;  // connections of the server
  beast::flat_buffer buffer_{2 * kMaxRequestBytes};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
};

class BeastMetricsServer : public MetricsServer {
 public:
  explicit BeastMetricsServer(Endpoints endpoints)
      : endpoints_(std::move(endpoints)), acceptor_(context_), retry_(context_) {}

  ~BeastMetricsServer() override {
    context_.stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  absl::Status Listen(const std::string& host, int port) {
    beast::error_code error;
    Tcp::resolver resolver(context_);
    const auto addresses =
        resolver.resolve(host, std::to_string(port), Tcp::resolver::passive, error);
    const std::string where = base::StrCat("metrics address ", host, ":", port, ": ");
    if (error || addresses.empty()) {
      return absl::InvalidArgumentError(base::StrCat(where, error.message()));
    }
    const Tcp::endpoint endpoint = addresses.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) {
      acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    }
    if (!error) {
      acceptor_.bind(endpoint, error);
    }
    if (!error) {
      acceptor_.listen(asio::socket_base::max_listen_connections, error);
    }
    if (error) {
      return absl::UnavailableError(base::StrCat(where, error.message()));
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { context_.run(); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, Tcp::socket socket) {
      if (!error && *open_ < kMaxConnections) {
        std::make_shared<Session>(std::move(socket), &endpoints_, open_)->Read();
      }
      if (error) {  // e.g. out of descriptors: not a busy loop
        retry_.expires_after(kAcceptRetry);
        retry_.async_wait([this](beast::error_code stopped) {
          if (!stopped) {
            Accept();
          }
        });
        return;
      }
      Accept();
    });
  }

  Endpoints endpoints_;
  std::shared_ptr<int> open_ = std::make_shared<int>(0);
  asio::io_context context_{1};
  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& host,
                                                                    int port, Registry* registry,
                                                                    std::function<bool()> healthy,
                                                                    std::function<bool()> ready) {
  auto server = std::make_unique<BeastMetricsServer>(
      Endpoints{registry, std::move(healthy), std::move(ready)});
  if (const absl::Status status = server->Listen(host, port); !status.ok()) {
    return status;
  }
  return std::unique_ptr<MetricsServer>(std::move(server));
}

}  // namespace tandem::telemetry
