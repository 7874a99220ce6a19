#include "router/frontend/router_app.h"

#include <array>
#include <boost/asio/post.hpp>
#include <random>
#include <utility>

#include "common/base/config.h"
#include "common/base/log.h"
#include "router/frontend/request_fields.h"

namespace tandem::router {

namespace asio = boost::asio;

namespace {

constexpr size_t kMaxWarnedFields = 64;
constexpr size_t kMaxWarnedFieldBytes = 64;
constexpr char kShuttingDown[] = "The server is shutting down.";
constexpr std::string_view kModelsPrefix = "/v1/models/";

struct RouteEntry {
  std::string_view path;
  std::string_view method;  // a GET also answers HEAD
  Route route;
};

constexpr std::array<RouteEntry, 10> kRoutes = {{
    {"/v1/completions", "POST", Route::kCompletions},
    {"/v1/chat/completions", "POST", Route::kChatCompletions},
    {"/v1/embeddings", "POST", Route::kEmbeddings},
    {"/v1/models", "GET", Route::kModels},
    {"/tokenize", "POST", Route::kTokenize},
    {"/detokenize", "POST", Route::kDetokenize},
    {"/health", "GET", Route::kHealth},
    {"/ready", "GET", Route::kReady},
    {"/version", "GET", Route::kVersion},
    {"/metrics", "GET", Route::kMetrics},
}};
constexpr RouteEntry kOneModel = {"/v1/models/", "GET", Route::kModels};

const RouteEntry* FindRoute(std::string_view path) {
  for (const RouteEntry& entry : kRoutes) {
    if (entry.path == path) {
      return &entry;
    }
  }
  return path.starts_with(kModelsPrefix) && path.size() > kModelsPrefix.size() ? &kOneModel
                                                                               : nullptr;
}

bool Allows(const RouteEntry& entry, std::string_view method) {
  return method == entry.method || (entry.method == "GET" && method == "HEAD");
}

// Takes the same time whatever the difference, so that a key cannot be found byte by byte.
bool SameKey(std::string_view given, std::string_view key) {
  unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(c ^ key[i]);
  }
  return difference == 0;
}

// %XX in a path.
std::string DecodePath(std::string_view path) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
  };
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && i + 2 < path.size() && digit(path[i + 1]) >= 0 &&
        digit(path[i + 2]) >= 0) {
      out += static_cast<char>(digit(path[i + 1]) * 16 + digit(path[i + 2]));
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

Endpoint EndpointOf(Route route) {
  switch (route) {
    case Route::kChatCompletions:
      return Endpoint::kChat;
    case Route::kTokenize:
      return Endpoint::kTokenize;
    case Route::kDetokenize:
      return Endpoint::kDetokenize;
    default:
      return Endpoint::kCompletions;
  }
}

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
      large_body_pool_(static_cast<size_t>(options_.large_body_threads)) {}

RouterApp::~RouterApp() {
  large_body_pool_.stop();
  large_body_pool_.join();
}

ApiResult RouterApp::CheckHead(const HttpRequest& head) {
  const RouteEntry* const entry = FindRoute(head.path);
  const bool open =
      entry != nullptr && (entry->route == Route::kHealth || entry->route == Route::kReady);
  if (!options_.api_key.empty() && !open) {
    std::string_view given = head.authorization;
    static constexpr std::string_view kBearer = "bearer ";
    bool bearer = given.size() >= kBearer.size();
    for (size_t i = 0; bearer && i < kBearer.size(); ++i) {
      bearer = (given[i] | 32) == kBearer[i];
    }
    if (!bearer || !SameKey(given.substr(kBearer.size()), options_.api_key)) {
      return ApiError{401, "The API key is missing or wrong; send `Authorization: Bearer KEY`.", "",
                      "invalid_api_key"};
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
  response.body = ErrorBody(error);
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (const RouteEntry* entry = FindRoute(call.path);
      entry != nullptr && error.http_status == 405) {
    response.headers.emplace_back("Allow", entry->method == "GET" ? "GET, HEAD" : "POST");
  }
  if (error.http_status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  const bool probe = call.route == Route::kHealth || call.route == Route::kReady;
  base::Log(probe ? base::LogLevel::kDebug : base::LogLevel::kInfo, "request refused",
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
  call->route = FindRoute(request.path)->route;
  call->request_id = RequestId(request.request_id);
  call->path = std::move(request.path);
  call->body = std::move(request.body);
  call->exchange = std::move(exchange);
  call->exchange->set_request_id(call->request_id);
  switch (call->route) {
    case Route::kCompletions:
    case Route::kChatCompletions:
    case Route::kTokenize:
    case Route::kDetokenize:
      HandlePost(std::move(call));
      return;
    case Route::kEmbeddings:
      AnswerError(*call,
                  {501, "This server generates text; it has no embeddings.", "", "not_supported"});
      return;
    default:
      AnswerGet(*call);
  }
}

void RouterApp::AnswerGet(const Call& call) {
  HttpResponse response;
  switch (call.route) {
    case Route::kModels:
      AnswerModels(call);
      return;
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

void RouterApp::AnswerModels(const Call& call) {
  HttpResponse response;
  if (call.path.starts_with(kModelsPrefix)) {
    const std::string name = DecodePath(call.path.substr(kModelsPrefix.size()));
    const auto model = context_.fleet->FindModel(name);
    if (!model) {
      AnswerError(call, ModelNotFound(name));
      return;
    }
    AppendModel(*model, name, &response.body);
  } else {
    response.body = "{\"object\":\"list\",\"data\":[";
    bool first = true;
    for (const auto& model : context_.fleet->Models()) {
      for (const std::string& name : model->served_names) {
        response.body += first ? "" : ",";
        AppendModel(*model, name, &response.body);
        first = false;
      }
    }
    response.body += "]}";
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

uint64_t RouterApp::Track(const std::shared_ptr<Exchange>& exchange,
                          std::function<void()> cut_off) {
  std::lock_guard lock(open_mutex_);
  if (cut_off_) {
    return 0;
  }
  open_.emplace(next_open_id_, Open{exchange, &exchange->io(), std::move(cut_off)});
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
  out->error = ReadRequest(body, &out->request,
                           [&](std::string_view field) { WarnUnknown(field, call.request_id); });
  if (!out->error) {
    out->error = FindModel(out->request, &out->model);
  }
  if (out->error) {
    return;
  }
  if (call.route == Route::kDetokenize) {
    out->error = Detokenize(out->request.tokens, *out->model, &out->text);
    return;
  }
  const int64_t now_s = context_.clock->UnixUs() / 1'000'000;
  if (call.route == Route::kTokenize) {
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
  } else if (call->route == Route::kTokenize) {
    AnswerTokenize(*call, prepared);
  } else if (call->route == Route::kDetokenize) {
    HttpResponse response;
    response.body = "{\"prompt\":";
    AppendJsonString(prepared.text, &response.body);
    response.body += '}';
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
  const auto open_id = std::make_shared<uint64_t>(0);
  setup.on_done = [this, open_id, route = call->route](int status) {
    context_.metrics->CountRequest(route, status);
    running_.fetch_sub(1);
    Untrack(*open_id);
  };
  const auto generation = std::make_shared<Generation>(context_, std::move(setup), call->exchange);
  *open_id = Track(call->exchange, [weak = std::weak_ptr(generation)] {
    if (const auto running = weak.lock()) {
      running->CutOff(NotReady(kShuttingDown));
    }
  });
  ApiResult error = *open_id == 0 ? ApiResult(NotReady(kShuttingDown)) : generation->Start();
  if (error) {
    running_.fetch_sub(1);
    Untrack(*open_id);
    AnswerError(*call, *error);
  }
}

void RouterApp::AnswerTokenize(const Call& call, const Prepared& prepared) {
  const std::vector<int32_t>& tokens = prepared.prompts[0].tokens;
  HttpResponse response;
  response.body = "{\"count\":" + std::to_string(tokens.size()) +
                  ",\"max_model_len\":" + std::to_string(prepared.model->max_model_len) +
                  ",\"tokens\":";
  AppendIds(tokens, &response.body);
  if (prepared.request.return_token_strings && prepared.model->text) {
    response.body += ",\"token_strs\":[";
    for (size_t i = 0; i < tokens.size(); ++i) {
      response.body += i > 0 ? "," : "";
      AppendJsonString(prepared.model->text->tokenizer->TokenText(tokens[i]), &response.body);
    }
    response.body += ']';
  }
  response.body += '}';
  Answer(call, std::move(response));
}

}  // namespace tandem::router
