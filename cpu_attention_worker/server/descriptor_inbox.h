#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shm/descriptor_socket.h"

namespace tandem::cpu_attention_worker {

// Receives regions on PATH.fd. Each stays with its connection, whose end tells that the sender is
// gone, until an Attach call names its nonce. Connections that say nothing hold up no other. Owns
// one thread.
class DescriptorInbox {
 public:
  struct Entry {
    uint64_t nonce = 0;
    shm::OwnedFd descriptor;
    shm::OwnedFd connection;
  };

  static absl::StatusOr<std::unique_ptr<DescriptorInbox>> Listen(const std::string& path);
  ~DescriptorInbox();

  // NotFound: no such descriptor came within the time.
  absl::StatusOr<Entry> Take(uint64_t nonce, int64_t timeout_us);

 private:
  DescriptorInbox(std::string path, shm::OwnedFd listener);
  // A connection whose message has not come.
  struct Silent {
    shm::OwnedFd connection;
    int64_t deadline_us = 0;
  };

  void Run();
  void Accept(std::vector<Silent>* silent);
  void Receive(shm::OwnedFd connection);

  const std::string path_;
  const shm::OwnedFd listener_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Entry> entries_;
  std::thread thread_;
};

}  // namespace tandem::cpu_attention_worker
