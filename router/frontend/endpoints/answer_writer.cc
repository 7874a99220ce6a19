#include "router/frontend/endpoints/answer_writer.h"

#include <utility>

#include "router/frontend/json_text.h"

namespace tandem::router {

void AnswerWriter::Break(const ApiError& error, const EventSink& sink) {
  sink("error", ErrorBody(error));
}

std::unique_ptr<AnswerWriter> MakeAnswerWriter(ResponseHead head,
                                               const GenerationRequest* request) {
  switch (head.endpoint) {
    case Endpoint::kResponses:
      return MakeResponsesWriter(std::move(head), request);
    case Endpoint::kMessages:
      return MakeMessagesWriter(std::move(head), request);
    case Endpoint::kGrpc:
      return MakeGrpcWriter();
    default:
      return MakeChoicesWriter(std::move(head), request);
  }
}

std::string_view IdPrefix(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return "chatcmpl-";
    case Endpoint::kResponses:
      return "resp_";
    case Endpoint::kMessages:
      return "msg_";
    default:
      return "cmpl-";
  }
}

}  // namespace tandem::router
