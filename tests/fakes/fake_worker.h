#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem::fakes {

// What a scripted Generate call may do; used on the call's own thread.
class FakeCall {
 public:
  virtual ~FakeCall() = default;
  virtual const v1::GenerateRequest& request() const = 0;
  // False when the client has gone.
  virtual bool Write(const v1::GenerateResponse& response) = 0;
  virtual bool cancelled() const = 0;
};

// A GPU worker that speaks the real protocol and computes nothing: grpc.health.v1, GetModel,
// GetTokenizer, and Generate by a script. Thread-safe.
class FakeWorker {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    std::string tokenizer_folder;  // with tokenizer.json; empty: the model has no tokenizer
    std::string chat_template;
    std::vector<std::string> served_names = {"fake-model"};
    int32_t max_model_len = 512;
    int32_t vocab_size = 768;
    std::string system_fingerprint = "fake-1";
    bool serving = true;
    // What the default script generates: token `(seed + position) % size` of these.
    std::vector<int32_t> tokens = {40, 41, 42, 43, 44, 45, 46, 47};
    // The process kills itself once a call that resumes nothing has sent that many tokens.
    int32_t die_after_tokens = -1;
  };
  using Script = std::function<grpc::Status(FakeCall&)>;

  static absl::StatusOr<std::unique_ptr<FakeWorker>> Start(const Options& options);
  virtual ~FakeWorker() = default;  // cancels what runs

  virtual const std::string& address() const = 0;
  virtual void SetServing(bool serving) = 0;
  // For the calls that come from now on; null: the default script.
  virtual void SetScript(Script script) = 0;
  virtual std::vector<v1::GenerateRequest> requests() const = 0;
  // Waits until that many calls were cancelled by the client; false when the time is over.
  virtual bool WaitForCancelled(int count, int64_t timeout_us) = 0;
};

// The default script: max_tokens tokens, one per message, with logprobs where asked for; goes on
// after generated_token_ids. `tokens` as in Options.
grpc::Status GenerateTokens(FakeCall& call, const std::vector<int32_t>& tokens);
// One message's worth of it: the token at `position` of the output.
v1::GenerateResponse FakeResponse(const v1::GenerateRequest& request,
                                  const std::vector<int32_t>& tokens, int32_t position);

}  // namespace tandem::fakes
