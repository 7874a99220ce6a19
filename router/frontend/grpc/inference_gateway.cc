#include "router/frontend/grpc/inference_gateway.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "router/frontend/request_fields.h"
#include "router/frontend/routes.h"

namespace tandem::router {

namespace asio = boost::asio;

namespace {

constexpr size_t kMaxRequestIdBytes = 128;

// The message as the JSON that /v1/completions takes, so that one table knows every range.
Json BodyOf(const v1::GenerateRequest& proto) {
  Json body = Json::object();
  if (!proto.model().empty()) {
    body["model"] = proto.model();
  }
  if (!proto.prompt().empty()) {
    body["prompt"] = proto.prompt();
  } else {
    body["prompt"] = Json::array();
    for (const int32_t id : proto.prompt_token_ids()) {
      body["prompt"].push_back(id);
    }
  }
  if (proto.has_sampling()) {
    const v1::SamplingParams& sampling = proto.sampling();
    body["temperature"] = sampling.temperature();
    body["top_k"] = sampling.top_k();
    body["top_p"] = sampling.top_p() == 0 ? 1.0F : sampling.top_p();
    body["min_p"] = sampling.min_p();
    body["repetition_penalty"] =
        sampling.repetition_penalty() == 0 ? 1.0F : sampling.repetition_penalty();
    body["presence_penalty"] = sampling.presence_penalty();
    body["frequency_penalty"] = sampling.frequency_penalty();
    if (sampling.seed() != 0) {
      body["seed"] = static_cast<int64_t>(sampling.seed());
    }
    for (const auto& [id, bias] : sampling.logit_bias()) {
      body["logit_bias"][std::to_string(id)] = bias;
    }
  }
  if (proto.max_tokens() != 0) {
    body["max_tokens"] = proto.max_tokens();
  }
  body["min_tokens"] = proto.min_tokens();
  body["ignore_eos"] = proto.ignore_eos();
  body["stop"] = Json::array();
  for (const std::string& stop : proto.stop()) {
    body["stop"].push_back(stop);
  }
  body["stop_token_ids"] = Json::array();
  for (const int32_t id : proto.stop_token_ids()) {
    body["stop_token_ids"].push_back(id);
  }
  if (proto.has_logprobs()) {
    body["logprobs"] = proto.logprobs();
  }
  body["priority"] = proto.priority();
  return body;
}

}  // namespace

ApiResult FromProto(const v1::GenerateRequest& proto, GenerationRequest* request) {
  request->endpoint = Endpoint::kCompletions;
  if (!proto.prompt().empty() && !proto.prompt_token_ids().empty()) {
    return InvalidRequest("Either `prompt` or `prompt_token_ids` is needed, not both.", "prompt");
  }
  if (proto.prompt().empty() && proto.prompt_token_ids().empty()) {
    return InvalidRequest("Either `prompt` or `prompt_token_ids` is needed.", "prompt");
  }
  if (proto.max_tokens() < 0) {
    return InvalidRequest("`max_tokens` must be at least 1, or 0 for the default.", "max_tokens");
  }
  if (!proto.generated_token_ids().empty()) {
    return InvalidRequest("`generated_token_ids` is between routers and workers only.",
                          "generated_token_ids");
  }
  if (ApiResult error = ReadRequest(BodyOf(proto), request, [](std::string_view) {})) {
    return error;
  }
  if (proto.has_prompt_logprobs()) {
    if (proto.prompt_logprobs() < 0 || proto.prompt_logprobs() > kMaxTopLogprobs) {
      return InvalidRequest(
          "`prompt_logprobs` must be from 0 to " + std::to_string(kMaxTopLogprobs) + ".",
          "prompt_logprobs");
    }
    request->prompt_logprobs = proto.prompt_logprobs();
  }
  request->endpoint = Endpoint::kGrpc;
  request->stream = true;
  request->deadline_unix_us = proto.deadline_unix_us();
  return std::nullopt;
}

bool InferenceGateway::HasKey(const grpc::CallbackServerContext& context) const {
  if (api_key_.empty()) {
    return true;
  }
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  return it != metadata.end() &&
         SameKey(AuthorizationKey({it->second.data(), it->second.size()}), api_key_);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceGateway::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* proto) {
  const std::shared_ptr<GrpcExchange> exchange = GrpcExchange::Create(next_place_());
  auto request = std::make_shared<GenerationRequest>();
  ApiResult error;
  if (!HasKey(*context)) {
    error = ApiError{401, "The API key is missing or wrong; send `authorization: Bearer KEY`.", "",
                     "invalid_api_key"};
  } else if (proto->request_id().size() > kMaxRequestIdBytes) {
    error = InvalidRequest("`request_id` is longer than 128 bytes.", "request_id");
  } else {
    error = FromProto(*proto, request.get());
  }
  const std::chrono::system_clock::time_point deadline = context->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    const int64_t deadline_us =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline.time_since_epoch()).count();
    request->deadline_unix_us = request->deadline_unix_us > 0
                                    ? std::min(request->deadline_unix_us, deadline_us)
                                    : deadline_us;
  }
  asio::post(exchange->io(),
             [this, exchange, request, error = std::move(error), id = proto->request_id()] {
               if (error) {
                 HttpResponse response;
                 response.error = error;
                 exchange->Respond(std::move(response));
               } else {
                 run_(std::move(*request), id, exchange);
               }
             });
  return exchange->reactor();
}

grpc::ServerUnaryReactor* InferenceGateway::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest*,
                                                     v1::GetModelResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto models = fleet_->Models();
  if (!HasKey(*context)) {
    reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, "The API key is missing or wrong."});
  } else if (models.empty()) {
    reactor->Finish({grpc::StatusCode::UNAVAILABLE, "No worker is ready."});
  } else {
    const ModelInfo& model = *models[0];
    response->set_model_id(model.root);
    for (const std::string& name : model.served_names) {
      response->add_served_model_names(name);
    }
    response->set_max_model_len(model.max_model_len);
    response->set_vocab_size(model.vocab_size);
    response->set_system_fingerprint(model.system_fingerprint);
    response->set_tokenizer_sha256(model.tokenizer_sha256);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

}  // namespace tandem::router
