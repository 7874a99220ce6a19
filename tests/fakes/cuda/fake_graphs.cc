// The fake driver's functions for captures and graphs.
#include <cuda.h>

#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/handles.h"

namespace tandem::fake_cuda {

Graph*& Capturing() {
  thread_local Graph* graph = nullptr;
  return graph;
}

}  // namespace tandem::fake_cuda

using namespace tandem::fake_cuda;  // NOLINT: the functions below are C's

extern "C" {

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL || Of(stream)->capture != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Capturing() = new Graph;
  Capturing()->Begin(Of(stream));
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* captured) {
  Graph* graph = Of(stream)->capture;
  Capturing() = nullptr;
  *captured = nullptr;
  if (graph == nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  const CUresult result = graph->End(*Of(stream));
  if (result != CUDA_SUCCESS) {
    delete graph;
    return result;
  }
  *captured = reinterpret_cast<CUgraph>(graph);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const Graph* graph = Of(stream)->capture;
  *status = graph == nullptr    ? CU_STREAM_CAPTURE_STATUS_NONE
            : graph->is_valid() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* instance, CUgraph graph, unsigned long long flags) {
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *instance = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  if (Of(stream)->capture != nullptr) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (DeviceOf(stream) != CurrentDevice()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  reinterpret_cast<const Graph*>(graph)->Launch(Of(stream));
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}

}  // extern "C"
