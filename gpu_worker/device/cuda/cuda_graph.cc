#include "gpu_worker/device/cuda/cuda_graph.h"

#include <utility>

#include "common/base/status_macros.h"

namespace tandem::gpu_worker::device {

DriverGraph::~DriverGraph() {
  if (graph_ != nullptr) {
    context_->Bind();
    (void)context_->api().cuGraphExecDestroy(graph_);
  }
}

// As a node of the graph: a plain record would only order streams.
absl::Status DriverGraph::Stamp(CUstream stream, double* time_us) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DriverEvent> event, DriverEvent::Create(context_, true));
  TANDEM_RETURN_IF_ERROR(context_->Check(
      context_->api().cuEventRecordWithFlags(event->handle(), stream, CU_EVENT_RECORD_EXTERNAL),
      "cuEventRecordWithFlags"));
  stamps_.push_back({std::move(event), time_us});
  return absl::OkStatus();
}

absl::Status DriverGraph::Instantiate(CUgraph captured) {
  return context_->Check(context_->api().cuGraphInstantiate(&graph_, captured, 0),
                         "cuGraphInstantiate");
}

DriverGraph* DriverStream::Capturing() const {
  DriverGraph* graph = context_->capture();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (graph == nullptr || context_->api().cuStreamIsCapturing(stream_, &status) != CUDA_SUCCESS ||
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    return nullptr;
  }
  return graph;
}

absl::StatusOr<std::unique_ptr<CudaGraph>> DriverStream::CaptureOnce(
    std::span<CudaStream* const> others, const std::function<absl::Status()>& queue) {
  auto graph = std::make_unique<DriverGraph>(context_);
  // Other threads go on with the driver meanwhile.
  TANDEM_RETURN_IF_ERROR(context_->Check(
      context_->api().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
      "cuStreamBeginCapture"));
  context_->SetCapture(graph.get());
  absl::Status status = queue();
  context_->SetCapture(nullptr);
  CUgraph captured = nullptr;
  status.Update(context_->Check(context_->api().cuStreamEndCapture(stream_, &captured),
                                "cuStreamEndCapture"));
  status.Update(TakeError());
  for (CudaStream* other : others) {
    status.Update(static_cast<DriverStream*>(other)->TakeError());
  }
  if (status.ok()) {
    status = graph->Instantiate(captured);
  }
  if (captured != nullptr) {
    (void)context_->api().cuGraphDestroy(captured);
  }
  if (!status.ok()) {
    return status;
  }
  return graph;
}

absl::StatusOr<std::unique_ptr<CudaGraph>> DriverStream::Capture(
    std::span<CudaStream* const> others, const std::function<absl::Status()>& queue) {
  context_->Bind();
  const absl::Status before = TakeError();
  const bool with_words = context_->captures_words();
  absl::StatusOr<std::unique_ptr<CudaGraph>> graph = CaptureOnce(others, queue);
  if (!graph.ok() && with_words && !context_->captures_words()) {
    graph = CaptureOnce(others, queue);
  }
  Fail(before);
  return graph;
}

void DriverStream::LaunchGraph(CudaGraph& graph) {
  context_->Bind();
  auto& driver_graph = static_cast<DriverGraph&>(graph);
  if (stamp_events_.empty()) {
    absl::StatusOr<std::unique_ptr<DriverEvent>> base = DriverEvent::Create(context_, true);
    if (!base.ok()) {
      Fail(base.status());
      return;
    }
    stamp_events_.push_back(*std::move(base));
  }
  BeginStamps();
  for (const DriverGraph::TimedEvent& stamp : driver_graph.stamps()) {
    stamps_.push_back({stamp.event->handle(), stamp.time_us});
  }
  Keep(context_->api().cuGraphLaunch(driver_graph.handle(), stream_), "cuGraphLaunch");
}

}  // namespace tandem::gpu_worker::device
