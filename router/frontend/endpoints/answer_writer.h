#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/frontend/response_format.h"

namespace tandem::router {

// Takes a server-sent event; `event` is empty for an unnamed one.
using EventSink = std::function<void(std::string_view event, std::string_view data)>;

// How an endpoint tells its answer. Either Whole, or as a stream Part for what each choice adds (in
// any order of choices, the last of each with its finish_reason) and End. Not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // `usage`: of that choice so far.
  virtual void Part(const ChoicePart& part, const UsageCounts& usage, const EventSink& sink) = 0;
  virtual void End(const UsageCounts& usage, const EventSink& sink) = 0;
  // A stream that has begun breaks off.
  virtual void Break(const ApiError& error, const EventSink& sink);
  virtual std::string Whole(std::span<const ChoicePart> parts, const UsageCounts& usage) = 0;
};

// The writer of the endpoint of `request`, which outlives it.
std::unique_ptr<AnswerWriter> MakeAnswerWriter(ResponseHead head, const GenerationRequest* request);

// By endpoint.
std::unique_ptr<AnswerWriter> MakeChoicesWriter(ResponseHead head,
                                                const GenerationRequest* request);
std::unique_ptr<AnswerWriter> MakeResponsesWriter(ResponseHead head,
                                                  const GenerationRequest* request);
std::unique_ptr<AnswerWriter> MakeMessagesWriter(ResponseHead head,
                                                 const GenerationRequest* request);

std::unique_ptr<AnswerWriter> MakeGrpcWriter();

// What an endpoint's ids begin with.
std::string_view IdPrefix(Endpoint endpoint);

}  // namespace tandem::router
