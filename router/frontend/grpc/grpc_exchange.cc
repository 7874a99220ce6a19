#include "router/frontend/grpc/grpc_exchange.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace tandem::router {

namespace asio = boost::asio;

// Keeps the exchange alive until gRPC lets go of the call.
class GrpcExchange::Reactor : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit Reactor(std::shared_ptr<GrpcExchange> exchange) : exchange_(std::move(exchange)) {}

  void OnWriteDone(bool ok) override {
    asio::post(exchange_->io(), [exchange = exchange_, ok] { exchange->OnWritten(ok); });
  }
  void OnCancel() override {
    asio::post(exchange_->io(), [exchange = exchange_] { exchange->OnCancelled(); });
  }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<GrpcExchange> exchange_;
};

std::shared_ptr<GrpcExchange> GrpcExchange::Create(const Place& place) {
  std::shared_ptr<GrpcExchange> exchange(new GrpcExchange(place));
  exchange->reactor_ = new Reactor(exchange);
  return exchange;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GrpcExchange::reactor() { return reactor_; }

void GrpcExchange::Respond(HttpResponse response) {
  on_gone_ = nullptr;
  on_drained_ = nullptr;
  End(response.error ? ToGrpc(*response.error) : grpc::Status::OK);
}

void GrpcExchange::Event(std::string_view, std::string_view data) {
  v1::GenerateResponse& response = queue_.emplace_back();
  response.ParseFromArray(data.data(), static_cast<int>(data.size()));
  unsent_bytes_ += data.size();
  was_congested_ = was_congested_ || congested();
}

void GrpcExchange::AbortEvents(const ApiError& error) { End(ToGrpc(error)); }

void GrpcExchange::WriteNext() {
  if (writing_ || finished_ || gone_ || queue_.empty()) {
    return;
  }
  current_ = std::move(queue_.front());
  queue_.pop_front();
  writing_ = true;
  reactor_->StartWrite(&current_);
}

void GrpcExchange::OnWritten(bool ok) {
  writing_ = false;
  if (!ok || gone_) {
    OnCancelled();
    return;
  }
  unsent_bytes_ -= std::min(unsent_bytes_, current_.ByteSizeLong());
  WriteNext();
  if (ending_) {
    FinishOnceIdle(std::move(end_));
    return;
  }
  if (was_congested_ && !congested()) {
    was_congested_ = false;
    if (const auto on_drained =
            on_drained_) {  // a copy: an answer that ends in it drops the callback
      on_drained();
    }
  }
}

void GrpcExchange::OnCancelled() {
  if (finished_) {
    return;
  }
  gone_ = true;
  on_drained_ = nullptr;
  if (const auto on_gone = std::exchange(on_gone_, nullptr)) {
    on_gone();
  }
  FinishOnceIdle({grpc::StatusCode::CANCELLED, "the client left"});
}

void GrpcExchange::FinishOnceIdle(grpc::Status status) {
  ending_ = true;
  end_ = std::move(status);
  if (!writing_ && !finished_) {
    finished_ = true;
    reactor_->Finish(end_);
  }
}

void GrpcExchange::End(grpc::Status status) {
  if (finished_ || gone_) {
    return;
  }
  on_gone_ = nullptr;
  on_drained_ = nullptr;
  WriteNext();
  FinishOnceIdle(std::move(status));
}

grpc::Status ToGrpc(const ApiError& error) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (error.http_status) {
    case 400:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case 401:
      code = grpc::StatusCode::UNAUTHENTICATED;
      break;
    case 404:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case 429:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    case 502:
    case 503:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    case 504:
      code = grpc::StatusCode::DEADLINE_EXCEEDED;
      break;
    default:
      break;
  }
  v1::ErrorDetail detail;
  detail.set_param(error.param);
  detail.set_code(error.code);
  return {code, error.message, detail.SerializeAsString()};
}

}  // namespace tandem::router
