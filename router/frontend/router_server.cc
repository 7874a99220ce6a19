#include "router/frontend/router_server.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/server.h"
#include "common/telemetry/metrics.h"
#include "router/frontend/grpc/inference_gateway.h"
#include "router/frontend/http/http_server.h"
#include "router/frontend/model_text.h"
#include "router/frontend/router_app.h"
#include "router/policy/round_robin.h"

namespace tandem::router {
namespace {

// What clients get to take their last answer: most need a few milliseconds, and a shutdown that is
// to be at once cannot wait for the others.
constexpr int64_t kLastAnswersUs = 400'000;
constexpr int kPollMs = 2;
constexpr int kHealthMs = 200;

// Members are destroyed from the last to the first: what is used comes before what uses it.
class Router : public RouterServer {
 public:
  Router(const RouterOptions& options, const base::Clock* clock)
      : registry_(telemetry::Registry::Create()),
        clock_(clock),
        fleet_(options.workers, MakeRoundRobin(), options.max_pending_resumes),
        metrics_(registry_.get(), &fleet_),
        texts_([text = options.text, clock](const tokenizer::TokenizerSpec& spec) {
          ModelTextOptions now = text;
          now.now_unix_s = clock->UnixUs() / 1'000'000;
          return BuildModelText(spec, now);
        }) {
    fleet_.set_on_model([this](const ModelInfo& model) {
      for (const std::string& name : model.served_names) {
        metrics_.ForModel(name);
      }
    });
    fleet_.set_on_suspect([this](int worker) { workers_[worker]->Recheck(); });
    GenerationContext context;
    for (int i = 0; i < fleet_.size(); ++i) {
      workers_.push_back(std::make_unique<WorkerClient>(i, &fleet_, &texts_));
      context.workers.push_back(workers_.back().get());
    }
    for (int i = 0; i < options.num_threads; ++i) {
      loops_.push_back(std::make_unique<CompletionLoop>());
      context.loops.push_back(loops_.back().get());
    }
    context.fleet = &fleet_;
    context.metrics = &metrics_;
    context.clock = clock;
    context.recovery.resume_timeout_us = options.resume_timeout_us;
    context.keep_alive_us = options.keep_alive_us;
    context.request_timeout_us = options.request_timeout_us;
    RouterApp::Options app_options;
    app_options.api_key = options.api_key;
    app_options.allowed_origins = options.allowed_origins;
    app_options.max_concurrent_requests = options.max_concurrent_requests;
    app_ = std::make_unique<RouterApp>(std::move(app_options), std::move(context), registry_.get());
  }
  ~Router() override { Stop(); }

  absl::Status Open(const RouterOptions& options, const base::Clock* clock) {
    app_->set_healthy([this] { return !server_ || server_->making_progress(); });
    HttpServer::Options http;
    http.address = options.listen;
    http.num_threads = options.num_threads;
    http.limits = options.http;
    TANDEM_ASSIGN_OR_RETURN(server_, HttpServer::Start(http, app_.get(), clock));
    TANDEM_ASSIGN_OR_RETURN(
        metrics_server_,
        telemetry::MetricsServer::Start(
            options.metrics_host, options.metrics_port, registry_.get(),
            [this] { return server_->making_progress(); }, [this] { return app_->ready(); }));
    for (auto& worker : workers_) {
      worker->Start();
    }
    return options.grpc_listen.empty() ? absl::OkStatus() : OpenGrpc(options);
  }

  absl::Status OpenGrpc(const RouterOptions& options) {
    gateway_ = std::make_unique<InferenceGateway>(
        &fleet_, options.api_key,
        [this, unsent = options.http.max_unsent_bytes] {
          const int index = static_cast<int>(next_thread_.fetch_add(1) %
                                             static_cast<unsigned>(server_->num_threads()));
          return GrpcExchange::Place{&server_->io(index), index, unsent};
        },
        [this](GenerationRequest request, const std::string& id,
               std::shared_ptr<Exchange> exchange) {
          app_->OnTyped(std::move(request), id, std::move(exchange));
        });
    rpc::Server::Options grpc;
    grpc.address = options.grpc_listen;
    grpc.services = {gateway_.get()};
    grpc.names = {v1::Inference::service_full_name()};
    grpc.serving = false;
    TANDEM_ASSIGN_OR_RETURN(grpc_server_, rpc::Server::Start(grpc));
    grpc_health_ = std::make_unique<boost::asio::steady_timer>(server_->io(0));
    boost::asio::post(server_->io(0), [this] { UpdateGrpcHealth(); });
    return absl::OkStatus();
  }

  // grpc.health.v1 says what /ready says; on the first HTTP thread.
  void UpdateGrpcHealth() {
    if (grpc_stopping_) {
      return;
    }
    if (const bool ready = app_->ready(); ready != grpc_serving_) {
      grpc_serving_ = ready;
      grpc_server_->SetServing(ready);
    }
    grpc_health_->expires_after(std::chrono::milliseconds(kHealthMs));
    grpc_health_->async_wait([this](boost::system::error_code error) {
      if (!error) {
        UpdateGrpcHealth();
      }
    });
  }

  int port() const override { return server_->port(); }
  int grpc_port() const override { return grpc_server_ ? grpc_server_->port() : 0; }
  int metrics_port() const override { return metrics_server_->port(); }
  bool ready() const override { return app_->ready(); }
  void BeginDrain() override { app_->BeginDrain(); }
  int64_t running() const override { return app_->running(); }

  int64_t CutOff() override {
    const std::vector<std::weak_ptr<Exchange>> exchanges = app_->CutOff();
    const int64_t deadline_us = clock_->NowUs() + kLastAnswersUs;
    const auto closed = [](const std::weak_ptr<Exchange>& exchange) { return exchange.expired(); };
    while (!std::all_of(exchanges.begin(), exchanges.end(), closed) &&
           clock_->NowUs() < deadline_us) {
      poll(nullptr, 0, kPollMs);
    }
    return static_cast<int64_t>(exchanges.size());
  }

  void Stop() override {
    metrics_server_.reset();
    if (grpc_server_) {
      boost::asio::post(server_->io(0), [this] {
        grpc_stopping_ = true;
        grpc_health_->cancel();
      });
      // Cancels what runs; the calls end on the HTTP threads, which are still there.
      grpc_server_->Shutdown(0);
    }
    if (server_) {
      server_->Stop();
    }
    for (auto& worker : workers_) {
      worker->Stop();
    }
    loops_.clear();  // waits for the last tags of the cancelled calls
  }

 private:
  std::unique_ptr<telemetry::Registry> registry_;
  const base::Clock* clock_;
  Fleet fleet_;
  RouterMetrics metrics_;
  ModelTextCache texts_;
  std::vector<std::unique_ptr<WorkerClient>> workers_;
  std::vector<std::unique_ptr<CompletionLoop>> loops_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<RouterApp> app_;
  std::unique_ptr<telemetry::MetricsServer> metrics_server_;
  std::unique_ptr<InferenceGateway> gateway_;
  std::unique_ptr<boost::asio::steady_timer> grpc_health_;
  bool grpc_serving_ = false;  // these two: of the first HTTP thread
  bool grpc_stopping_ = false;
  std::atomic<unsigned> next_thread_ = 0;
  std::unique_ptr<rpc::Server> grpc_server_;
};

absl::Status CheckFlagAddress(std::string_view flag, const std::string& address) {
  const absl::Status status = rpc::CheckAddress(address);
  return status.ok() ? status
                     : absl::InvalidArgumentError(
                           base::StrCat(flag, ": '", address, "': ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(const RouterOptions& options,
                                                                  const base::Clock* clock) {
  for (const std::string& worker : options.workers) {
    TANDEM_RETURN_IF_ERROR(CheckFlagAddress("--worker", worker));
  }
  if (!options.grpc_listen.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckFlagAddress("--grpc-listen", options.grpc_listen));
  }
  auto router = std::make_unique<Router>(options, clock);
  TANDEM_RETURN_IF_ERROR(router->Open(options, clock));
  return router;
}

}  // namespace tandem::router
