#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/telemetry/metrics.h"
#include "router/frontend/endpoints/stats.h"
#include "router/frontend/generation.h"
#include "router/frontend/http/http_types.h"
#include "router/frontend/router_metrics.h"

namespace tandem::router {

// The router's HTTP API: paths, keys, request ids, limits on what runs, and the answers that need
// no worker. Thread-safe as HttpHandler wants it.
class RouterApp : public HttpHandler {
 public:
  struct Options {
    std::string api_key;  // empty: none is asked for
    // Origins of the pages whose scripts may use the server; "*": all.
    std::vector<std::string> allowed_origins = {"*"};
    int64_t max_concurrent_requests = 4096;
    // Bodies from this size on are read and tokenized on a thread of their own, so that they hold
    // up nobody's stream.
    size_t large_body_bytes = 16u << 10;
    int large_body_threads = 1;
    int64_t max_waiting_large_bodies = 256;
  };

  // `registry` and what `context` points to outlive the app; see set_healthy for the rest.
  RouterApp(Options options, GenerationContext context, telemetry::Registry* registry);
  ~RouterApp() override;

  // What /health asks. Set before the server starts.
  void set_healthy(std::function<bool()> healthy) { healthy_ = std::move(healthy); }

  ApiResult CheckHead(const HttpRequest& head) override;
  void OnRequest(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  void OnRefused(const HttpRequest& head, ApiError error,
                 std::shared_ptr<Exchange> exchange) override;
  // A request that did not come as HTTP; on its exchange's thread. An empty id is made up.
  void OnTyped(GenerationRequest request, const std::string& request_id,
               std::shared_ptr<Exchange> exchange);
  std::string ExtraHeaders(const HttpRequest& head) const override;
  bool draining() const override { return draining_.load(std::memory_order_relaxed); }

  // /ready is 503 from now on, and so are new generations.
  void BeginDrain() { draining_ = true; }
  bool ready() const { return !draining() && context_.fleet->AnyReady(); }
  // Generations, and large bodies on their way to one.
  int64_t running() const;
  // Answers everything that runs with an error, each on its connection's thread, and refuses what
  // would still come. Gives the connections, each of which expires when its client has closed it.
  std::vector<std::weak_ptr<Exchange>> CutOff();

 private:
  // One request on its way through the app.
  struct Call {
    Route route = Route::kOther;
    std::string request_id;
    std::string path;
    std::string body;
    int64_t started_us = 0;
    std::shared_ptr<Exchange> exchange;
  };
  // A request that CutOff would answer.
  struct Open {
    std::weak_ptr<Exchange> exchange;
    boost::asio::io_context* io = nullptr;
    std::function<void()> cut_off;
    std::shared_ptr<const RequestProgress> progress;  // null: not a generation yet
  };
  // What a body became: the request and its tokens, or an error.
  struct Prepared {
    GenerationRequest request;
    std::shared_ptr<const ModelInfo> model;
    std::vector<TokenizedPrompt> prompts;
    std::string text;  // of /detokenize
    ApiResult error;
  };

  std::string RequestId(const std::string& wanted);
  void Answer(const Call& call, HttpResponse response);
  void AnswerError(const Call& call, const ApiError& error);
  void AnswerGet(const Call& call);
  void AnswerStats(std::shared_ptr<Call> call);
  void AnswerPreflight(const HttpRequest& head, const Call& call);
  void HandlePost(std::shared_ptr<Call> call);
  // Reads the body and tokenizes; on any thread.
  void Prepare(const Call& call, Prepared* out);
  // The part of it that follows the body: model, checks, tokens.
  void PrepareRequest(const Call& call, Prepared* out);
  ApiResult FindModel(const GenerationRequest& request, std::shared_ptr<const ModelInfo>* model);
  void Run(const std::shared_ptr<Call>& call, Prepared prepared);
  void Generate(const std::shared_ptr<Call>& call, Prepared prepared);
  // 0 after CutOff.
  uint64_t Track(const std::shared_ptr<Exchange>& exchange, std::function<void()> cut_off,
                 std::shared_ptr<const RequestProgress> progress = nullptr);
  // False when CutOff has taken it.
  bool Untrack(uint64_t open_id);
  void WarnUnknown(std::string_view field, const std::string& request_id);

  const Options options_;
  const GenerationContext context_;
  telemetry::Registry* const registry_;
  std::function<bool()> healthy_;
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> running_ = 0;       // generations
  std::atomic<int64_t> large_bodies_ = 0;  // queued or being read
  std::atomic<uint64_t> next_id_ = 0;
  uint64_t id_salt_ = 0;
  mutable std::mutex open_mutex_;
  std::unordered_map<uint64_t, Open> open_;  // by id
  uint64_t next_open_id_ = 1;
  bool cut_off_ = false;
  std::mutex warned_mutex_;
  std::set<std::string, std::less<>> warned_fields_;
  boost::asio::thread_pool large_body_pool_;
  StatsSource stats_;
};

}  // namespace tandem::router
