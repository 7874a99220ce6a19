#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Timelines of steps as a Chrome trace (chrome://tracing, ui.perfetto.dev).
namespace tandem::gpu_worker {

// A line of the timeline.
enum class TraceTrack { kStep, kDevice, kLink, kMover, kSwapper, kCpu };

// Something that took time; microseconds of base::SystemClock.
struct TraceSpan {
  const char* name = "";  // without characters that JSON escapes
  TraceTrack track = TraceTrack::kDevice;
  int32_t sub_batch = -1;  // 0: A, 1: B, -1: neither
  int32_t layer = -1;      // -1: none
  double begin_us = 0;
  double end_us = 0;
};

struct StepTrace {
  uint64_t epoch = 0;
  const char* mode = "";
  int64_t rows[2] = {0, 0};      // of the sub-batches
  int64_t cpu_rows[2] = {0, 0};  // of them, attended by the CPU
  double begin_us = 0;
  double end_us = 0;
  std::vector<TraceSpan> spans;
};

// Writes steps to a file that is valid JSON after each of them, whatever ends the process, and that
// stops growing at a limit. One thread.
class StepTracer {
 public:
  // Creates or empties the file. Errors name it.
  static absl::StatusOr<std::unique_ptr<StepTracer>> Open(const std::string& path,
                                                          int64_t max_bytes = kMaxBytes);
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  void Add(const StepTrace& step);

  // Some thousand steps of a model of 32 layers.
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;

 private:
  StepTracer(std::string path, int fd, int64_t max_bytes);
  // Appends events (each with a comma before it) and the end of the file.
  bool Append(const std::string& events);
  void StopAfter(const char* why);

  const std::string path_;
  const int64_t max_bytes_;
  int fd_;            // -1: stopped
  int64_t used_ = 0;  // without the end of the file
};

// The events of a step, for Append. `step` times are made relative to nothing: the trace's times
// are base::SystemClock's.
std::string StepEvents(const StepTrace& step);

}  // namespace tandem::gpu_worker
