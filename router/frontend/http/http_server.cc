#include "router/frontend/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <thread>
#include <unordered_set>
#include <utility>

#include "common/base/log.h"
#include "router/frontend/http/http_session.h"

namespace tandem::router {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;

namespace {

constexpr int64_t kMaxTickUs = 250'000;
constexpr int64_t kMinTickUs = 5'000;
constexpr int64_t kStalledUs = 10'000'000;
constexpr int kBacklog = 1024;
constexpr std::string_view kTooManyConnections =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    "Connection: close\r\nContent-Length: 135\r\n\r\n"
    R"({"error":{"message":"Too many connections are open; try again later.",)"
    R"("type":"server_error","param":null,"code":"service_unavailable"}})";

int64_t TickOf(const HttpLimits& limits) {
  const int64_t shortest = std::min({limits.idle_timeout_us, limits.header_timeout_us,
                                     limits.body_timeout_us, limits.write_timeout_us});
  return std::clamp(shortest / 4, kMinTickUs, kMaxTickUs);
}

absl::StatusOr<Protocol::endpoint> ParseAddress(const std::string& address) {
  if (address.starts_with("unix:")) {
    const std::string path = address.substr(5);
    if (path.empty() || path.size() >= sizeof(sockaddr_un{}.sun_path)) {
      return absl::InvalidArgumentError("unix socket path is empty or too long: " + address);
    }
    return Protocol::endpoint(asio::local::stream_protocol::endpoint(path));
  }
  const size_t colon = address.rfind(':');
  unsigned port = 0;
  std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  const char* end = address.data() + address.size();
  if (colon == std::string::npos || host.empty() ||
      std::from_chars(address.data() + colon + 1, end, port).ptr != end ||
      colon + 1 == address.size() || port > 65535) {
    return absl::InvalidArgumentError("--listen: allowed are host:port and unix:PATH, not '" +
                                      address + "'");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  asio::ip::address ip = asio::ip::make_address(host, error);
  if (error) {
    asio::io_context context;
    asio::ip::tcp::resolver resolver(context);
    const auto found = resolver.resolve(host, "", asio::ip::tcp::resolver::passive, error);
    if (error || found.empty()) {
      return absl::InvalidArgumentError("--listen: cannot resolve '" + host + "'");
    }
    ip = found.begin()->endpoint().address();
  }
  return Protocol::endpoint(asio::ip::tcp::endpoint(ip, static_cast<uint16_t>(port)));
}

// A unix socket of a process that is gone would be in the way.
void RemoveStaleSocket(const std::string& address, const Protocol::endpoint& endpoint) {
  asio::io_context context;
  Protocol::socket probe(context);
  error_code error;
  probe.connect(endpoint, error);
  if (error == asio::error::connection_refused) {
    unlink(address.substr(5).c_str());
  }
}

// Tells a client that it is one too many. At most what the kernel takes at once: such clients must
// not cost anything.
void TurnAway(Protocol::socket socket) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.send(asio::buffer(kTooManyConnections.data(), kTooManyConnections.size()), 0, ignored);
  socket.shutdown(asio::socket_base::shutdown_send, ignored);
  // What it sent already; left unread, it would make the close a reset.
  char dropped[4096];
  socket.receive(asio::buffer(dropped), 0, ignored);
}

// One thread of the server.
struct IoThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer tick{context};
  std::unordered_set<HttpSession*> sessions;  // this thread's only
  std::atomic<int64_t> last_tick_us = 0;
  std::thread thread;
};

class Server : public HttpServer {
 public:
  Server(const Options& options, HttpHandler* handler, const base::Clock* clock)
      : options_(options), handler_(handler), clock_(clock), tick_us_(TickOf(options.limits)) {
    for (int i = 0; i < std::max(1, options_.num_threads); ++i) {
      threads_.push_back(std::make_unique<IoThread>());
    }
    acceptor_ = std::make_unique<Acceptor>(threads_[0]->context);
    retry_ = std::make_unique<asio::steady_timer>(threads_[0]->context);
  }
  ~Server() override { Stop(); }

  absl::Status Listen();
  void Run();
  int port() const override { return port_; }
  void Stop() override;
  bool making_progress() const override;
  asio::io_context& io(int index) override { return threads_[static_cast<size_t>(index)]->context; }
  int num_threads() const override { return static_cast<int>(threads_.size()); }
  int connections() const override { return connections_.load(std::memory_order_relaxed); }

 private:
  using Acceptor = asio::basic_socket_acceptor<Protocol>;

  void Accept();
  void Adopt(Protocol::socket socket, int thread);
  void Tick(IoThread* thread);

  Options options_;
  HttpHandler* handler_;
  const base::Clock* clock_;
  int64_t tick_us_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> retry_;
  size_t next_thread_ = 0;
  int port_ = 0;
  bool running_ = false;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> stopping_ = false;
};

absl::Status Server::Listen() {
  auto endpoint = ParseAddress(options_.address);
  if (!endpoint.ok()) {
    return endpoint.status();
  }
  const bool is_unix = options_.address.starts_with("unix:");
  if (is_unix) {
    RemoveStaleSocket(options_.address, *endpoint);
  }
  error_code error;
  acceptor_->open(endpoint->protocol(), error);
  if (!error && !is_unix) {
    acceptor_->set_option(asio::socket_base::reuse_address(true), error);
  }
  if (!error) {
    acceptor_->bind(*endpoint, error);
  }
  if (!error) {
    acceptor_->listen(kBacklog, error);
  }
  if (error) {
    return absl::UnavailableError("cannot listen on " + options_.address + ": " + error.message());
  }
  if (!is_unix) {
    const Protocol::endpoint bound = acceptor_->local_endpoint(error);
    const auto* generic = reinterpret_cast<const sockaddr*>(bound.data());
    port_ = generic->sa_family == AF_INET6
                ? ntohs(reinterpret_cast<const sockaddr_in6*>(generic)->sin6_port)
                : ntohs(reinterpret_cast<const sockaddr_in*>(generic)->sin_port);
  }
  return absl::OkStatus();
}

void Server::Run() {
  running_ = true;
  Accept();
  for (auto& thread : threads_) {
    IoThread* const io = thread.get();
    io->last_tick_us = clock_->NowUs();
    Tick(io);
    io->thread = std::thread([io] { io->context.run(); });
  }
}

void Server::Accept() {
  const int thread = static_cast<int>(next_thread_++ % threads_.size());
  acceptor_->async_accept(
      threads_[thread]->context, [this, thread](error_code error, Protocol::socket socket) {
        if (stopping_ || error == asio::error::operation_aborted) {
          return;
        }
        if (!error) {
          Adopt(std::move(socket), thread);
          Accept();
          return;
        }
        // Mostly a lack of file descriptors: trying again at once would only spin.
        base::LogWarning("cannot accept a connection", {{"error", error.message()}});
        retry_->expires_after(std::chrono::milliseconds(50));
        retry_->async_wait([this](error_code cancelled) {
          if (!cancelled && !stopping_) {
            Accept();
          }
        });
      });
}

void Server::Adopt(Protocol::socket socket, int thread) {
  if (connections_.load(std::memory_order_relaxed) >= options_.limits.max_connections) {
    TurnAway(std::move(socket));
    return;
  }
  connections_.fetch_add(1, std::memory_order_relaxed);
  if (port_ != 0) {
    const int on = 1;
    const int unsent = static_cast<int>(options_.limits.max_unsent_bytes);
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // Else the kernel alone would hold megabytes for a reader that does not read.
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  }
  IoThread* const io = threads_[thread].get();
  HttpSession::Context context;
  context.io = &io->context;
  context.io_index = thread;
  context.limits = &options_.limits;
  context.handler = handler_;
  context.clock = clock_;
  context.on_closed = [this, io](HttpSession* session) {
    io->sessions.erase(session);
    connections_.fetch_sub(1, std::memory_order_relaxed);
  };
  auto session = std::make_shared<HttpSession>(std::move(socket), std::move(context));
  asio::post(io->context, [this, io, session] {
    io->sessions.insert(session.get());
    if (stopping_) {
      session->Close();
    } else {
      session->Start();
    }
  });
}

void Server::Tick(IoThread* io) {
  io->tick.expires_after(std::chrono::microseconds(tick_us_));
  io->tick.async_wait([this, io](error_code error) {
    if (error || stopping_) {
      return;
    }
    const int64_t now_us = clock_->NowUs();
    io->last_tick_us.store(now_us, std::memory_order_relaxed);
    const std::vector<HttpSession*> sessions(io->sessions.begin(), io->sessions.end());
    for (HttpSession* session : sessions) {
      if (io->sessions.contains(session)) {  // one's end may end another
        session->CheckDeadlines(now_us);
      }
    }
    Tick(io);
  });
}

void Server::Stop() {
  if (!std::exchange(running_, false)) {
    return;
  }
  stopping_ = true;
  asio::post(threads_[0]->context, [this] {
    error_code ignored;
    acceptor_->close(ignored);
    retry_->cancel();
  });
  for (auto& thread : threads_) {
    IoThread* const io = thread.get();
    asio::post(io->context, [io] {
      const std::vector<HttpSession*> sessions(io->sessions.begin(), io->sessions.end());
      for (HttpSession* session : sessions) {
        if (io->sessions.contains(session)) {
          session->Close();
        }
      }
      io->tick.cancel();
      io->work.reset();
    });
  }
  for (auto& thread : threads_) {
    thread->thread.join();
  }
  if (options_.address.starts_with("unix:")) {
    unlink(options_.address.substr(5).c_str());
  }
}

bool Server::making_progress() const {
  const int64_t oldest = clock_->NowUs() - kStalledUs;
  return std::all_of(threads_.begin(), threads_.end(), [&](const auto& thread) {
    return thread->last_tick_us.load(std::memory_order_relaxed) > oldest;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              HttpHandler* handler,
                                                              const base::Clock* clock) {
  auto server = std::make_unique<Server>(options, handler, clock);
  if (absl::Status status = server->Listen(); !status.ok()) {
    return status;
  }
  server->Run();
  return server;
}

}  // namespace tandem::router
