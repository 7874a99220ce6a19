#include "gpu_worker/pipeline/step_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace tandem::gpu_worker {
namespace {

constexpr struct {
  TraceTrack track;
  const char* name;
} kTracks[] = {{TraceTrack::kStep, "step"},           {TraceTrack::kDevice, "device"},
               {TraceTrack::kLink, "link"},           {TraceTrack::kMover, "link, bulk"},
               {TraceTrack::kSwapper, "link, moves"}, {TraceTrack::kCpu, "CPU attention"}};
constexpr char kEnd[] = "\n]}\n";
constexpr int64_t kEndBytes = sizeof(kEnd) - 1;

// The beginning of the file: it holds what every event after it needs a comma behind.
std::string Head() {
  std::string head = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  for (const auto& track : kTracks) {
    absl::StrAppendFormat(
        &head,
        "%s{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
        separator, static_cast<int>(track.track), track.name);
    separator = ",\n";
  }
  return head;
}

bool WriteAt(int fd, const std::string& text, int64_t offset) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = pwrite(fd, text.data() + done, text.size() - done,
                                 static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    done += static_cast<size_t>(count);
  }
  return true;
}

void AppendSpan(const TraceSpan& span, std::string* out) {
  absl::StrAppendFormat(
      out, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f,\"name\":\"%s",
      static_cast<int>(span.track), span.begin_us,
      span.end_us > span.begin_us ? span.end_us - span.begin_us : 0.0, span.name);
  if (span.sub_batch >= 0) {
    absl::StrAppend(out, span.sub_batch == 0 ? " A" : " B");
  }
  if (span.layer >= 0) {
    absl::StrAppend(out, "\",\"args\":{\"layer\":", span.layer, "}}");
  } else {
    absl::StrAppend(out, "\"}");
  }
}

}  // namespace

std::string StepEvents(const StepTrace& step) {
  std::string out;
  absl::StrAppendFormat(
      &out,
      ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f,\"name\":\"%s\",\"args\":{"
      "\"epoch\":%d,\"rows_a\":%d,\"rows_b\":%d,\"cpu_rows_a\":%d,\"cpu_rows_b\":%d}}",
      static_cast<int>(TraceTrack::kStep), step.begin_us, step.end_us - step.begin_us, step.mode,
      step.epoch, step.rows[0], step.rows[1], step.cpu_rows[0], step.cpu_rows[1]);
  for (const TraceSpan& span : step.spans) {
    AppendSpan(span, &out);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<StepTracer>> StepTracer::Open(const std::string& path,
                                                             int64_t max_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("--trace-steps ", path));
  }
  std::unique_ptr<StepTracer> tracer(new StepTracer(path, fd, max_bytes));
  if (!tracer->Append(Head())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("--trace-steps ", path, ": writing"));
  }
  return tracer;
}

StepTracer::StepTracer(std::string path, int fd, int64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes), fd_(fd) {}

StepTracer::~StepTracer() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool StepTracer::Append(const std::string& events) {
  // One write: a reader or a sudden end sees the file with the step or without it.
  if (!WriteAt(fd_, events + kEnd, used_)) {
    return false;
  }
  used_ += static_cast<int64_t>(events.size());
  return true;
}

void StepTracer::Add(const StepTrace& step) {
  if (fd_ < 0) {
    return;
  }
  const std::string events = StepEvents(step);
  if (used_ + static_cast<int64_t>(events.size()) + kEndBytes > max_bytes_) {
    StopAfter("the file has reached its largest size");
  } else if (!Append(events)) {
    // What stood there stays readable.
    (void)(ftruncate(fd_, static_cast<off_t>(used_)) == 0 && WriteAt(fd_, kEnd, used_));
    StopAfter("writing failed");
  }
}

void StepTracer::StopAfter(const char* why) {
  base::LogWarning("steps are not traced any more", {{"file", path_}, {"reason", why}});
  close(fd_);
  fd_ = -1;
}

}  // namespace tandem::gpu_worker
