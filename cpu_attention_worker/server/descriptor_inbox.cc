#include "cpu_attention_worker/server/descriptor_inbox.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/shm/region.h"

namespace tandem::cpu_attention_worker {
namespace {

// Waiting descriptors; one is used at a time, more are a peer's failed attempts.
constexpr size_t kMaxEntries = 4;
// Connections without a message yet; then the oldest goes.
constexpr size_t kMaxSilent = 16;
constexpr int kSliceMs = 200;
constexpr int64_t kReceiveUs = 2'000'000;
constexpr int64_t kNoWaitUs = 1'000;

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorInbox>> DescriptorInbox::Listen(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(shm::OwnedFd listener, shm::ListenUnix(path));
  return std::unique_ptr<DescriptorInbox>(new DescriptorInbox(path, std::move(listener)));
}

DescriptorInbox::DescriptorInbox(std::string path, shm::OwnedFd listener)
    : path_(std::move(path)), listener_(std::move(listener)) {
  thread_ = std::thread([this] { Run(); });
}

DescriptorInbox::~DescriptorInbox() {
  stop_.store(true);
  thread_.join();
  unlink(path_.c_str());
}

void DescriptorInbox::Run() {
  pthread_setname_np(pthread_self(), "descriptors");
  std::vector<Silent> silent;
  while (!stop_.load()) {
    std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}};
    for (const Silent& one : silent) {
      entries.push_back({one.connection.get(), POLLIN, 0});
    }
    poll(entries.data(), entries.size(), kSliceMs);
    for (size_t i = 0; i < silent.size(); ++i) {
      if (entries[i + 1].revents != 0) {
        Receive(std::move(silent[i].connection));
      }
    }
    const int64_t now_us = base::SystemClock().NowUs();
    std::erase_if(silent, [now_us](const Silent& one) {
      return !one.connection.valid() || now_us >= one.deadline_us;
    });
    if (entries[0].revents != 0) {
      Accept(&silent);
    }
  }
}

void DescriptorInbox::Accept(std::vector<Silent>* silent) {
  absl::StatusOr<shm::OwnedFd> connection = shm::AcceptUnix(listener_.get(), kNoWaitUs);
  if (!connection.ok()) {
    // Out of descriptors, say: the listener stays readable, and asking at once would not help.
    poll(nullptr, 0, kSliceMs);
    return;
  }
  if (silent->size() == kMaxSilent) {
    silent->erase(silent->begin());
  }
  silent->push_back({*std::move(connection), base::SystemClock().NowUs() + kReceiveUs});
}

void DescriptorInbox::Receive(shm::OwnedFd connection) {
  const absl::StatusOr<shm::ReceivedDescriptor> received =
      shm::ReceiveDescriptor(connection.get(), kNoWaitUs);
  if (!received.ok()) {
    // A probe that connects and leaves is normal.
    base::LogDebug("descriptor socket", {{"error", std::string(received.status().message())}});
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& e) { return shm::PeerClosed(e.connection.get()); });
    if (entries_.size() == kMaxEntries) {
      entries_.pop_front();
    }
    entries_.push_back({received->nonce, shm::OwnedFd(received->fd), std::move(connection)});
  }
  arrived_.notify_all();
}

absl::StatusOr<DescriptorInbox::Entry> DescriptorInbox::Take(uint64_t nonce, int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  auto found = entries_.end();
  const bool arrived = arrived_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] {
    found = std::find_if(entries_.begin(), entries_.end(),
                         [nonce](const Entry& entry) { return entry.nonce == nonce; });
    return found != entries_.end();
  });
  if (!arrived) {
    return absl::NotFoundError("no region with this nonce came over the descriptor socket");
  }
  Entry entry = std::move(*found);
  entries_.erase(found);
  return entry;
}

}  // namespace tandem::cpu_attention_worker
