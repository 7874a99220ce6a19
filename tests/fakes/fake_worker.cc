#include "tests/fakes/fake_worker.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>

#include "common/rpc/server.h"
#include "common/rpc/tokenizer_spec_proto.h"

namespace tandem::fakes {
namespace {

constexpr size_t kChunkBytes = 1000;  // several messages even for a small tokenizer

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string Tokenizer(const FakeWorker::Options& options) {
  if (options.tokenizer_folder.empty()) {
    return "";
  }
  tokenizer::TokenizerSpec spec;
  spec.kind = tokenizer::TokenizerSpec::Kind::kTokenizerJson;
  spec.file = ReadFile(options.tokenizer_folder + "/tokenizer.json");
  spec.tokenizer_config_json = ReadFile(options.tokenizer_folder + "/tokenizer_config.json");
  spec.chat_template = options.chat_template;
  return rpc::TokenizerSpecToProto(spec).SerializeAsString();
}

void FillLogprobs(const v1::GenerateRequest& request, int32_t token, v1::TokenOutput* output) {
  if (!request.has_logprobs()) {
    return;
  }
  output->mutable_chosen()->set_token_id(token);
  output->mutable_chosen()->set_logprob(-0.5F);
  output->mutable_chosen()->set_rank(1);
  for (int32_t rank = 1; rank <= request.logprobs(); ++rank) {
    v1::TokenLogprob* top = output->add_top_logprobs();
    top->set_token_id(token + rank - 1);
    top->set_logprob(-0.5F * static_cast<float>(rank));
    top->set_rank(rank);
  }
}

void FillPromptLogprobs(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
  for (int i = 0; i < request.prompt_token_ids_size(); ++i) {
    v1::PromptTokenLogprobs* entry = response->add_prompt_logprobs();
    if (i == 0) {
      continue;
    }
    entry->mutable_actual()->set_token_id(request.prompt_token_ids(i));
    entry->mutable_actual()->set_logprob(-1.5F);
    entry->mutable_actual()->set_rank(request.prompt_logprobs() + 1);
    for (int32_t rank = 1; rank <= request.prompt_logprobs(); ++rank) {
      v1::TokenLogprob* top = entry->add_top_logprobs();
      top->set_token_id(request.prompt_token_ids(i) + rank);
      top->set_logprob(-0.25F * static_cast<float>(rank));
      top->set_rank(rank);
    }
  }
}

class Call : public FakeCall {
 public:
  Call(const v1::GenerateRequest& request, grpc::ServerContext* context,
       grpc::ServerWriter<v1::GenerateResponse>* writer, int32_t die_after_tokens)
      : request_(request),
        context_(context),
        writer_(writer),
        die_after_tokens_(request.generated_token_ids().empty() ? die_after_tokens : -1) {}

  const v1::GenerateRequest& request() const override { return request_; }
  bool cancelled() const override { return context_->IsCancelled(); }
  bool Write(const v1::GenerateResponse& response) override {
    const bool written = writer_->Write(response);
    sent_tokens_ += response.tokens_size();
    if (die_after_tokens_ >= 0 && sent_tokens_ >= die_after_tokens_) {
      kill(getpid(), SIGKILL);
    }
    return written;
  }

 private:
  const v1::GenerateRequest& request_;
  grpc::ServerContext* context_;
  grpc::ServerWriter<v1::GenerateResponse>* writer_;
  const int32_t die_after_tokens_;
  int32_t sent_tokens_ = 0;
};

class Worker : public FakeWorker, public v1::Inference::Service {
 public:
  explicit Worker(const Options& options)
      : options_(options),
        tokenizer_(Tokenizer(options)),
        instance_(std::to_string(getpid()) + "-" + std::to_string(next_instance_++)) {}

  absl::Status Open() {
    auto server = rpc::Server::Start(
        {.address = options_.address, .services = {this}, .serving = options_.serving});
    if (!server.ok()) {
      return server.status();
    }
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  ~Worker() override { server_.reset(); }

  const std::string& address() const override { return server_->address(); }
  void SetServing(bool serving) override { server_->SetServing(serving); }
  void SetScript(Script script) override {
    std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  std::vector<v1::GenerateRequest> requests() const override {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  bool WaitForCancelled(int count, int64_t timeout_us) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                             [&] { return cancelled_ >= count; });
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->set_model_id("fake");
    for (const std::string& name : options_.served_names) {
      response->add_served_model_names(name);
    }
    response->set_max_model_len(options_.max_model_len);
    response->set_vocab_size(options_.vocab_size);
    response->set_system_fingerprint(options_.system_fingerprint);
    response->set_worker_instance_id(instance_);
    response->set_tokenizer_sha256(
        tokenizer_.empty() ? "" : std::to_string(std::hash<std::string>()(tokenizer_)));
    return grpc::Status::OK;
  }

  grpc::Status GetTokenizer(grpc::ServerContext*, const v1::GetTokenizerRequest*,
                            grpc::ServerWriter<v1::GetTokenizerResponse>* writer) override {
    v1::GetTokenizerResponse response;
    for (size_t at = 0; at < tokenizer_.size(); at += kChunkBytes) {
      response.set_chunk(tokenizer_.substr(at, kChunkBytes));
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    Script script;
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(*request);
      script = script_;
    }
    Call call(*request, context, writer, options_.die_after_tokens);
    const grpc::Status status = script ? script(call) : GenerateTokens(call, options_.tokens);
    if (context->IsCancelled()) {
      std::lock_guard lock(mutex_);
      ++cancelled_;
      changed_.notify_all();
    }
    return status;
  }

 private:
  static inline std::atomic<int> next_instance_ = 0;

  const Options options_;
  const std::string tokenizer_;
  const std::string instance_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Script script_;
  std::vector<v1::GenerateRequest> requests_;
  int cancelled_ = 0;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace

v1::GenerateResponse FakeResponse(const v1::GenerateRequest& request,
                                  const std::vector<int32_t>& tokens, int32_t position) {
  v1::GenerateResponse response;
  const uint64_t place = request.sampling().seed() + static_cast<uint64_t>(position);
  const int32_t token = tokens[place % tokens.size()];
  v1::TokenOutput* output = response.add_tokens();
  output->set_token_id(token);
  FillLogprobs(request, token, output);
  if (position == 0 && request.has_prompt_logprobs()) {
    FillPromptLogprobs(request, &response);
  }
  if (position + 1 == request.max_tokens()) {
    response.set_finish_reason(v1::FINISH_REASON_LENGTH);
    response.mutable_usage()->set_prompt_tokens(request.prompt_token_ids_size());
    response.mutable_usage()->set_completion_tokens(request.max_tokens());
  }
  return response;
}

grpc::Status GenerateTokens(FakeCall& call, const std::vector<int32_t>& tokens) {
  const v1::GenerateRequest& request = call.request();
  for (int32_t at = request.generated_token_ids_size(); at < request.max_tokens(); ++at) {
    if (!call.Write(FakeResponse(request, tokens, at))) {
      return grpc::Status::CANCELLED;
    }
  }
  return grpc::Status::OK;
}

absl::StatusOr<std::unique_ptr<FakeWorker>> FakeWorker::Start(const Options& options) {
  auto worker = std::make_unique<Worker>(options);
  if (absl::Status status = worker->Open(); !status.ok()) {
    return status;
  }
  return worker;
}

}  // namespace tandem::fakes
