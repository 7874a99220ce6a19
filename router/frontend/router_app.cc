#include "router/frontend/router_app.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <random>
#include <utility>

#include "common/base/config.h"
#include "common/base/log.h"
#include "router/frontend/endpoints/openapi.h"
#include "router/frontend/endpoints/pages.h"
#include "router/frontend/endpoints/plain_answers.h"
#include "router/frontend/request_fields.h"
#include "router/frontend/tools.h"

namespace tandem::router {

namespace asio = boost::asio;

namespace {

constexpr size_t kMaxWarnedFields = 64;
constexpr size_t kMaxWarnedFieldBytes = 64;
constexpr char kShuttingDown[] = "The server is shutting down.";

uint64_t RandomNumber() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

}  // namespace

RouterApp::RouterApp(Options options, GenerationContext context, telemetry::Registry* registry)
    : options_(std::move(options)),
      context_(std::move(context)),
      registry_(registry),
      id_salt_(RandomNumber()),
      large_body_pool_(static_cast<size_t>(options_.large_body_threads)),
      stats_(context_.workers, context_.clock) {}

RouterApp::~RouterApp() {
  large_body_pool_.stop();
  large_body_pool_.join();
}

ApiResult RouterApp::CheckHead(const HttpRequest& head) {
  const RouteEntry* const entry = FindRoute(head.path);
  if (head.preflight) {  // comes without a key; OnRequest answers it
    return std::nullopt;
  }
  if (!options_.api_key.empty() && !(entry != nullptr && IsOpen(entry->route))) {
    const std::string key = AuthorizationKey(head.authorization);
    if (!SameKey(key.empty() ? head.api_key : key, options_.api_key)) {
      return ApiError{401,
                      "The API key is missing or wrong; send `Authorization: Bearer KEY` or "
                      "`x-api-key: KEY`.",
                      "", "invalid_api_key"};
    }
  }
  if (entry == nullptr) {
    return ApiError{404, "There is nothing at " + head.path.substr(0, 128) + ".", "", "not_found"};
  }
  if (!Allows(*entry, head.method)) {
    return ApiError{405,
                    std::string(entry->path) + " takes " + std::string(entry->method) + ", not " +
                        head.method.substr(0, 32) + ".",
                    "", "method_not_allowed"};
  }
  return std::nullopt;
}

std::string RouterApp::ExtraHeaders(const HttpRequest& head) const {
  const std::vector<std::string>& allowed = options_.allowed_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (head.origin.empty() ||
      (!any && std::find(allowed.begin(), allowed.end(), head.origin) == allowed.end())) {
    return "";
  }
  std::string headers = "Access-Control-Allow-Origin: " + (any ? "*" : head.origin) +
                        "\r\nAccess-Control-Expose-Headers: x-request-id, retry-after\r\n";
  if (!any) {
    headers += "Vary: Origin\r\n";
  }
  return headers;
}

void RouterApp::AnswerPreflight(const HttpRequest& head, const Call& call) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = "OK";
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  response.headers.emplace_back(
      "Access-Control-Allow-Headers",
      head.requested_headers.empty() ? "*" : head.requested_headers.substr(0, 1024));
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  Answer(call, std::move(response));
}

std::string RouterApp::RequestId(const std::string& wanted) {
  if (!wanted.empty()) {
    return wanted;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  // Unique by the counter, not to be guessed by the random half.
  std::string id;
  for (uint64_t part :
       {id_salt_ + next_id_.fetch_add(1, std::memory_order_relaxed), RandomNumber()}) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      id += kHex[(part >> shift) & 15];
    }
  }
  return id;
}

void RouterApp::Answer(const Call& call, HttpResponse response) {
  context_.metrics->CountRequest(call.route, response.status);
  call.exchange->Respond(std::move(response));
}

void RouterApp::AnswerError(const Call& call, const ApiError& error) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorBodyFor(EndpointOf(call.route), error);
  response.error = error;
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (const RouteEntry* entry = FindRoute(call.path);
      entry != nullptr && error.http_status == 405) {
    response.headers.emplace_back("Allow", AllowedMethods(*entry));
  }
  if (error.http_status == 401) {
    // A browser asks its user for a page's key: the password.
    response.headers.emplace_back("WWW-Authenticate",
                                  call.route == Route::kPage ? "Basic realm=\"Tandem\"" : "Bearer");
  }
  base::Log(IsOpen(call.route) ? base::LogLevel::kDebug : base::LogLevel::kInfo, "request refused",
            {{"request_id", call.request_id},
             {"path", call.path.substr(0, 128)},
             {"status", error.http_status},
             {"error", error.message}});
  Answer(call, std::move(response));
}

void RouterApp::OnRefused(const HttpRequest& head, ApiError error,
                          std::shared_ptr<Exchange> exchange) {
  Call call;
  const RouteEntry* const entry = FindRoute(head.path);
  call.route = entry != nullptr ? entry->route : Route::kOther;
  call.path = head.path;
  call.request_id = RequestId(head.request_id);
  call.exchange = std::move(exchange);
  call.exchange->set_request_id(call.request_id);
  AnswerError(call, error);
}

void RouterApp::OnRequest(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  auto call = std::make_shared<Call>();
  call->started_us = context_.clock->NowUs();
  const RouteEntry* const entry = FindRoute(request.path);
  call->route = entry != nullptr ? entry->route : Route::kOther;
  call->request_id = RequestId(request.request_id);
  call->path = std::move(request.path);
  call->body = std::move(request.body);
  call->exchange = std::move(exchange);
  call->exchange->set_request_id(call->request_id);
  if (request.preflight) {
    AnswerPreflight(request, *call);
    return;
  }
  switch (call->route) {
    case Route::kCompletions:
    case Route::kChatCompletions:
    case Route::kResponses:
    case Route::kMessages:
    case Route::kCountTokens:
    case Route::kTokenize:
    case Route::kDetokenize:
      HandlePost(std::move(call));
      return;
    case Route::kUnsupported:
      AnswerError(*call, {501, "This server generates text; it has nothing for " + call->path + ".",
                          "", "not_supported"});
      return;
    case Route::kStats:
      AnswerStats(std::move(call));
      return;
    default:
      AnswerGet(*call);
  }
}

void RouterApp::OnTyped(GenerationRequest request, const std::string& request_id,
                        std::shared_ptr<Exchange> exchange) {
  auto call = std::make_shared<Call>();
  call->started_us = context_.clock->NowUs();
  call->route = Route::kGrpc;
  call->request_id = RequestId(request_id);
  call->path = "tandem.v1.Inference/Generate";
  call->exchange = std::move(exchange);
  Prepared prepared;
  prepared.request = std::move(request);
  PrepareRequest(*call, &prepared);
  Run(call, std::move(prepared));
}

void RouterApp::AnswerStats(std::shared_ptr<Call> call) {
  StatsSource::Requests requests;
  {
    std::lock_guard lock(open_mutex_);
    for (const auto& [id, open] : open_) {
      if (open.progress) {
        requests.push_back(open.progress);
      }
    }
  }
  const bool asked = stats_.Get(std::move(requests), [this, call](std::string json) {
    asio::post(call->exchange->io(), [this, call, json = std::move(json)]() mutable {
      HttpResponse response;
      response.body = std::move(json);
      Answer(*call, std::move(response));
    });
  });
  if (!asked) {
    AnswerError(*call, Overloaded("Too many clients ask for the statistics; try again later."));
  }
}

void RouterApp::AnswerGet(const Call& call) {
  HttpResponse response;
  switch (call.route) {
    case Route::kModels:
      if (ApiResult error = ModelsBody(*context_.fleet, call.path, &response.body)) {
        AnswerError(call, *error);
        return;
      }
      break;
    case Route::kDocument:
      response.body = OpenApiDocument(context_.fleet->Models());
      break;
    case Route::kPage:
      response.content_type = "text/html; charset=utf-8";
      response.body = PageAt(call.path);
      break;
    case Route::kHealth:
      if (healthy_ && !healthy_()) {
        AnswerError(call, NotReady("The server makes no progress."));
        return;
      }
      response.body = "{\"status\":\"ok\"}";
      break;
    case Route::kReady:
      if (!ready()) {
        AnswerError(call, NotReady(draining() ? kShuttingDown : "No worker is ready."));
        return;
      }
      response.body = "{\"status\":\"ready\"}";
      break;
    case Route::kVersion:
      response.body = "{\"version\":";
      AppendJsonString(base::Version(), &response.body);
      response.body += '}';
      break;
    default:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = registry_->Render();
  }
  Answer(call, std::move(response));
}

void RouterApp::WarnUnknown(std::string_view field, const std::string& request_id) {
  {
    std::lock_guard lock(warned_mutex_);
    field = field.substr(0, kMaxWarnedFieldBytes);
    if (warned_fields_.size() >= kMaxWarnedFields || warned_fields_.contains(field)) {
      return;
    }
    warned_fields_.emplace(field);
  }
  base::LogWarning("a field of a request is unknown and ignored, here and from now on",
                   {{"field", field}, {"request_id", request_id}});
}

int64_t RouterApp::running() const {
  std::lock_guard lock(open_mutex_);
  return static_cast<int64_t>(open_.size());
}

uint64_t RouterApp::Track(const std::shared_ptr<Exchange>& exchange, std::function<void()> cut_off,
                          std::shared_ptr<const RequestProgress> progress) {
  std::lock_guard lock(open_mutex_);
  if (cut_off_) {
    return 0;
  }
  open_.emplace(next_open_id_,
                Open{exchange, &exchange->io(), std::move(cut_off), std::move(progress)});
  return next_open_id_++;
}

bool RouterApp::Untrack(uint64_t open_id) {
  std::lock_guard lock(open_mutex_);
  return open_.erase(open_id) > 0;
}

std::vector<std::weak_ptr<Exchange>> RouterApp::CutOff() {
  std::unordered_map<uint64_t, Open> open;
  {
    std::lock_guard lock(open_mutex_);
    cut_off_ = true;
    open.swap(open_);
  }
  std::vector<std::weak_ptr<Exchange>> exchanges;
  for (auto& [id, request] : open) {
    exchanges.push_back(std::move(request.exchange));
    asio::post(*request.io, std::move(request.cut_off));
  }
  return exchanges;
}

void RouterApp::HandlePost(std::shared_ptr<Call> call) {
  if (call->body.size() < options_.large_body_bytes) {
    Prepared prepared;
    Prepare(*call, &prepared);
    Run(call, std::move(prepared));
    return;
  }
  if (large_bodies_.fetch_add(1) >= options_.max_waiting_large_bodies) {
    large_bodies_.fetch_sub(1);
    AnswerError(*call, Overloaded("Too many large requests are waiting; try again later."));
    return;
  }
  const uint64_t open_id =
      Track(call->exchange, [this, call] { AnswerError(*call, NotReady(kShuttingDown)); });
  if (open_id == 0) {
    large_bodies_.fetch_sub(1);
    AnswerError(*call, NotReady(kShuttingDown));
    return;
  }
  asio::post(large_body_pool_, [this, open_id, call = std::move(call)]() mutable {
    auto prepared = std::make_shared<Prepared>();
    Prepare(*call, prepared.get());
    large_bodies_.fetch_sub(1);
    asio::io_context& io = call->exchange->io();
    asio::post(io, [this, open_id, call = std::move(call), prepared = std::move(prepared)] {
      if (Untrack(open_id)) {
        Run(call, std::move(*prepared));
      }
    });
  });
}

void RouterApp::Prepare(const Call& call, Prepared* out) {
  Json body;
  out->error = ParseJson(call.body, &body);
  if (out->error) {
    return;
  }
  out->request.endpoint = EndpointOf(call.route);
  if (call.route == Route::kCountTokens && body.is_object() && !body.contains("max_tokens")) {
    body["max_tokens"] = 1;  // the one field that it lacks
  }
  out->error = ReadRequest(body, &out->request,
                           [&](std::string_view field) { WarnUnknown(field, call.request_id); });
  if (!out->error) {
    PrepareRequest(call, out);
  }
}

void RouterApp::PrepareRequest(const Call& call, Prepared* out) {
  out->error = FindModel(out->request, &out->model);
  if (out->error) {
    return;
  }
  if (out->model->text) {
    out->error = PrepareTools(&out->request, *out->model->text);
    if (out->error) {
      return;
    }
  }
  if (call.route == Route::kDetokenize) {
    out->error = Detokenize(out->request.tokens, *out->model, &out->text);
    return;
  }
  const int64_t now_s = context_.clock->UnixUs() / 1'000'000;
  if (call.route == Route::kTokenize || call.route == Route::kCountTokens) {
    out->prompts.emplace_back();
    out->error = TokenizeOnly(out->request, *out->model, now_s, &out->prompts[0]);
    return;
  }
  out->error = CheckAgainstModel(out->request, *out->model);
  if (!out->error) {
    out->error = TokenizePrompts(out->request, *out->model, now_s, &out->prompts);
  }
}

ApiResult RouterApp::FindModel(const GenerationRequest& request,
                               std::shared_ptr<const ModelInfo>* model) {
  *model = context_.fleet->FindModel(request.model);
  if (*model) {
    return std::nullopt;
  }
  if (context_.fleet->Models().empty()) {
    return NotReady("No worker is ready.");
  }
  if (request.model.empty()) {
    return InvalidRequest("`model` is missing, and there are several models.", "model");
  }
  return ModelNotFound(request.model);
}

void RouterApp::Run(const std::shared_ptr<Call>& call, Prepared prepared) {
  if (call->exchange->gone()) {
    context_.metrics->CountRequest(call->route, 499);
  } else if (prepared.error) {
    AnswerError(*call, *prepared.error);
  } else if (call->route == Route::kTokenize || call->route == Route::kDetokenize ||
             call->route == Route::kCountTokens) {
    HttpResponse response;
    if (call->route == Route::kTokenize) {
      response.body = TokenizeBody(prepared.request, *prepared.model, prepared.prompts[0]);
    } else if (call->route == Route::kDetokenize) {
      response.body = DetokenizeBody(prepared.text);
    } else {
      response.body =
          "{\"input_tokens\":" + std::to_string(prepared.prompts[0].tokens.size()) + '}';
    }
    Answer(*call, std::move(response));
  } else {
    Generate(call, std::move(prepared));
  }
}

void RouterApp::Generate(const std::shared_ptr<Call>& call, Prepared prepared) {
  if (draining()) {
    AnswerError(*call, NotReady(kShuttingDown));
    return;
  }
  if (running_.fetch_add(1) >= options_.max_concurrent_requests) {
    running_.fetch_sub(1);
    AnswerError(*call, Overloaded("Too many requests are running; try again later."));
    return;
  }
  Generation::Setup setup;
  setup.model_name =
      prepared.request.model.empty() ? prepared.model->served_names[0] : prepared.request.model;
  setup.request = std::move(prepared.request);
  setup.model = std::move(prepared.model);
  setup.prompts = std::move(prepared.prompts);
  setup.request_id = call->request_id;
  setup.seed = RandomNumber();
  setup.started_us = call->started_us;
  setup.progress = std::make_shared<RequestProgress>();
  setup.progress->id = call->request_id;
  setup.progress->started_us = call->started_us;
  const std::shared_ptr<const RequestProgress> progress = setup.progress;
  const auto open_id = std::make_shared<uint64_t>(0);
  setup.on_done = [this, open_id, route = call->route](int status) {
    context_.metrics->CountRequest(route, status);
    running_.fetch_sub(1);
    Untrack(*open_id);
  };
  const auto generation = std::make_shared<Generation>(context_, std::move(setup), call->exchange);
  *open_id = Track(
      call->exchange,
      [weak = std::weak_ptr(generation)] {
        if (const auto running = weak.lock()) {
          running->CutOff(NotReady(kShuttingDown));
        }
      },
      progress);
  ApiResult error = *open_id == 0 ? ApiResult(NotReady(kShuttingDown)) : generation->Start();
  if (error) {
    running_.fetch_sub(1);
    Untrack(*open_id);
    AnswerError(*call, *error);
  }
}

}  // namespace tandem::router
