#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cpu_attention_worker/server/attachment.h"
#include "cpu_attention_worker/server/descriptor_inbox.h"
#include "tandem/v1/cpu_attention.grpc.pb.h"

namespace tandem::cpu_attention_worker {

// tandem.v1.CpuAttention: one attachment at a time, held by its Attach call. Thread-safe.
class ControlService : public v1::CpuAttention::Service {
 public:
  explicit ControlService(const Placed& placed) : placed_(placed) {}

  // Before the server starts to answer Attach calls usefully; `inbox` outlives the service's calls.
  void SetInbox(DescriptorInbox* inbox);

  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                      grpc::ServerWriter<v1::AttachEvent>* writer) override;
  grpc::Status Configure(grpc::ServerContext* context, const v1::ConfigureRequest* request,
                         v1::ConfigureResponse* response) override;
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DescribeResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::CpuAttentionDrainRequest* request,
                     v1::CpuAttentionDrainResponse* response) override;

  // Refuses new attachments and steps, lets the running step finish, ends the attachment. False: it
  // was still there after `timeout_us`.
  bool DrainAll(int64_t timeout_us);
  // Whether the attachment, if there is one, makes progress.
  bool Healthy();

 private:
  absl::Status Reserve(DescriptorInbox** inbox);
  absl::StatusOr<std::shared_ptr<Attachment>> Open(const v1::AttachRequest& request,
                                                   DescriptorInbox* inbox,
                                                   shm::OwnedFd* connection);
  void Serve(grpc::ServerContext* context, Attachment* attachment, const shm::OwnedFd& connection,
             grpc::ServerWriter<v1::AttachEvent>* writer);
  void LogRefusal(const std::string& why);
  void FillDescription(v1::DescribeResponse* response);
  bool draining();

  const Placed placed_;
  std::mutex mutex_;
  std::condition_variable detached_;
  DescriptorInbox* inbox_ = nullptr;
  bool reserved_ = false;  // an Attach call is at work
  bool draining_ = false;
  std::string last_refusal_;
  std::shared_ptr<Attachment> attachment_;
};

}  // namespace tandem::cpu_attention_worker
