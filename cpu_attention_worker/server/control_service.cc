#include "cpu_attention_worker/server/control_service.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr int64_t kDescriptorUs = 5'000'000;
constexpr int64_t kWatchUs = 50'000;
// What a peer's death leaves of a step is not worth more.
constexpr int64_t kPeerGoneUs = 0;
constexpr int32_t kMaxDrainMs = 600'000;
// The loop comes round at least each second; a layer of the largest batch takes far less.
constexpr int64_t kStuckUs = 30'000'000;

v1::AttachEvent ToProto(const Attachment::Event& event) {
  v1::AttachEvent proto;
  switch (event.kind) {
    case Attachment::Event::Kind::kExtentsReady:
      proto.mutable_extents_ready()->set_count(event.extents);
      break;
    case Attachment::Event::Kind::kWarning:
      proto.mutable_warning()->set_message(event.message);
      break;
    case Attachment::Event::Kind::kStepFailed:
      proto.mutable_step_failed()->set_epoch(event.epoch);
      proto.mutable_step_failed()->set_message(event.message);
      break;
  }
  return proto;
}

}  // namespace

void ControlService::SetInbox(DescriptorInbox* inbox) {
  const std::lock_guard lock(mutex_);
  inbox_ = inbox;
}

bool ControlService::draining() {
  const std::lock_guard lock(mutex_);
  return draining_;
}

absl::Status ControlService::Reserve(DescriptorInbox** inbox) {
  const std::lock_guard lock(mutex_);
  if (draining_ || inbox_ == nullptr) {
    return absl::UnavailableError("the CPU attention worker is starting or draining");
  }
  if (reserved_) {
    return absl::AlreadyExistsError("another GPU worker is attached");
  }
  reserved_ = true;
  *inbox = inbox_;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Attachment>> ControlService::Open(const v1::AttachRequest& request,
                                                                 DescriptorInbox* inbox,
                                                                 shm::OwnedFd* connection) {
  if (request.layout_version() != exchange::kLayoutVersion) {
    return absl::FailedPreconditionError("the region's layout version is not this program's");
  }
  TANDEM_ASSIGN_OR_RETURN(DescriptorInbox::Entry entry,
                          inbox->Take(request.nonce(), kDescriptorUs));
  *connection = std::move(entry.connection);
  TANDEM_ASSIGN_OR_RETURN(shm::Region region,
                          shm::Region::Map(entry.descriptor.Release(), request.region_bytes()));
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<Attachment> attachment,
      Attachment::Start(std::move(region), request.first_attachment(), placed_));
  return std::shared_ptr<Attachment>(std::move(attachment));
}

// A peer that does not fit tries again and again: each reason is told once.
void ControlService::LogRefusal(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (why == last_refusal_) {
      return;
    }
    last_refusal_ = why;
  }
  base::LogWarning("attachment refused", {{"error", why}});
}

grpc::Status ControlService::Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                                    grpc::ServerWriter<v1::AttachEvent>* writer) {
  DescriptorInbox* inbox = nullptr;
  if (absl::Status status = Reserve(&inbox); !status.ok()) {
    return rpc::ToGrpcStatus(status);
  }
  shm::OwnedFd connection;
  absl::StatusOr<std::shared_ptr<Attachment>> attachment = Open(*request, inbox, &connection);
  if (attachment.ok()) {
    {
      const std::lock_guard lock(mutex_);
      attachment_ = *attachment;
      last_refusal_.clear();
    }
    base::LogInfo("attached", {{"region_bytes", request->region_bytes()},
                               {"first", request->first_attachment()}});
    Serve(context, attachment->get(), connection, writer);
    (*attachment)->Stop(kPeerGoneUs);
    base::LogInfo("detached");
  } else {
    LogRefusal(std::string(attachment.status().message()));
  }
  const absl::Status status = attachment.status();
  {
    const std::lock_guard lock(mutex_);
    attachment_.reset();
  }
  // Unmapped before another Attach can come; Describe may hold it for a moment longer.
  if (attachment.ok()) {
    attachment->reset();
  }
  {
    const std::lock_guard lock(mutex_);
    reserved_ = false;
  }
  detached_.notify_all();
  return rpc::ToGrpcStatus(status);
}

void ControlService::Serve(grpc::ServerContext* context, Attachment* attachment,
                           const shm::OwnedFd& connection,
                           grpc::ServerWriter<v1::AttachEvent>* writer) {
  v1::AttachEvent attached;
  FillDescription(attached.mutable_attached()->mutable_description());
  if (!writer->Write(attached)) {
    return;
  }
  while (!context->IsCancelled() && !shm::PeerClosed(connection.get())) {
    if (draining()) {
      attachment->BeginDrain();
    }
    if (attachment->ended()) {
      return;
    }
    const std::optional<Attachment::Event> event = attachment->WaitEvent(kWatchUs);
    if (event && !writer->Write(ToProto(*event))) {
      return;
    }
  }
}

grpc::Status ControlService::Configure(grpc::ServerContext*, const v1::ConfigureRequest* request,
                                       v1::ConfigureResponse*) {
  const std::lock_guard lock(mutex_);
  if (attachment_ == nullptr) {
    return rpc::ToGrpcStatus(absl::FailedPreconditionError("nothing is attached"));
  }
  switch (request->wait_policy()) {
    case v1::ConfigureRequest::WAIT_POLICY_YIELD:
      attachment_->SetPolicy(exchange::WaitPolicy::SharedCores());
      return grpc::Status::OK;
    case v1::ConfigureRequest::WAIT_POLICY_SPIN:
      attachment_->SetPolicy(exchange::WaitPolicy::OwnCores());
      return grpc::Status::OK;
    default:
      return rpc::ToGrpcStatus(
          absl::InvalidArgumentError("wait_policy: allowed are YIELD and SPIN"));
  }
}

void ControlService::FillDescription(v1::DescribeResponse* response) {
  response->set_version(std::string(base::Version()));
  response->set_pid(static_cast<int32_t>(getpid()));
  response->set_numa_node(placed_.placement.numa_node);
  for (const int cpu : placed_.placement.cpus) {
    response->add_cores(cpu);
  }
  response->set_isa(std::string(attention::IsaName(placed_.isa)));
  response->set_placement_reason(placed_.placement.reason);
  std::shared_ptr<Attachment> attachment;
  {
    const std::lock_guard lock(mutex_);
    attachment = attachment_;
  }
  if (attachment != nullptr) {
    response->set_page_kind(attachment->page_kind());
    response->set_memory_bound(attachment->memory_bound());
  }
}

grpc::Status ControlService::Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                                      v1::DescribeResponse* response) {
  FillDescription(response);
  return grpc::Status::OK;
}

grpc::Status ControlService::Drain(grpc::ServerContext*,
                                   const v1::CpuAttentionDrainRequest* request,
                                   v1::CpuAttentionDrainResponse*) {
  const int64_t timeout_ms = std::clamp(request->timeout_ms(), 0, kMaxDrainMs);
  if (!DrainAll(timeout_ms * 1000)) {
    return rpc::ToGrpcStatus(absl::DeadlineExceededError("the running step did not end in time"));
  }
  return grpc::Status::OK;
}

bool ControlService::Healthy() {
  const std::lock_guard lock(mutex_);
  return attachment_ == nullptr || attachment_->ended() ||
         base::SystemClock().NowUs() - attachment_->progress_us() < kStuckUs;
}

bool ControlService::DrainAll(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  if (attachment_ != nullptr) {
    attachment_->BeginDrain();
  }
  return detached_.wait_for(lock, std::chrono::microseconds(timeout_us),
                            [this] { return !reserved_; });
}

}  // namespace tandem::cpu_attention_worker
