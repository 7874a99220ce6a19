#include "gpu_worker/service/cpu_attention_link.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/shm/descriptor_socket.h"
#include "gpu_worker/service/attach_stream.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kRetryUs = 20'000;      // a worker that starts beside us is taken at once
constexpr int64_t kMaxRetryUs = 500'000;  // one that stays away costs nothing
constexpr int64_t kFastRetries = 500;     // of kRetryUs: the first ten seconds
constexpr int64_t kWatchUs = 50'000;
constexpr int64_t kPausedUs = 1'000'000;   // between two looks: this process did not run
constexpr int64_t kAttachUs = 10'000'000;  // from the descriptor to the first event
constexpr int64_t kCallUs = 5'000'000;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

uint64_t RandomNonce() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

class Link : public CpuAttentionLink {
 public:
  Link(const Options& options, exchange::DeviceSide* exchange, Callbacks callbacks)
      : options_(options), exchange_(exchange), callbacks_(std::move(callbacks)) {
    thread_ = std::thread([this] { Run(); });
  }

  ~Link() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

  bool up() const override { return up_.load(); }

 private:
  void Run();
  absl::Status AttachAndWatch();
  absl::Status WaitAttached(AttachStream* stream, const shm::OwnedFd& socket);
  absl::Status Watch(AttachStream* stream, const shm::OwnedFd& socket);
  void OnEvent(const v1::AttachEvent& event);
  void Lost(const absl::Status& why, const shm::OwnedFd& socket);
  void Kill(const shm::OwnedFd& socket) const;
  bool Sleep(int64_t timeout_us);  // false: stop
  bool Stopping() {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  const Options options_;
  exchange::DeviceSide* const exchange_;
  const Callbacks callbacks_;
  std::atomic<bool> up_{false};
  // Whether blocks were ever handed out: from then on the pool may hold live KV.
  bool pool_in_use_ = false;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

bool Link::Sleep(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return stop_; });
}

void Link::Run() {
  pthread_setname_np(pthread_self(), "cpu-link");
  int64_t failures = 0;
  std::string last_error;
  while (true) {
    const absl::Status ended = AttachAndWatch();
    // OK: there was an attachment, which ended.
    failures = ended.ok() ? 0 : failures + 1;
    const bool refused = !ended.ok() && !absl::IsUnavailable(ended);
    if (refused && Text(ended) != last_error) {
      last_error = Text(ended);
      base::LogWarning("attaching to the CPU attention worker failed", {{"error", last_error}});
    }
    // What does not fit now will not fit soon; only an attachment that is still there ends.
    const bool fits = !refused || absl::IsAlreadyExists(ended);
    const int64_t slow_us = fits ? kRetryUs * (failures - kFastRetries) : kMaxRetryUs;
    const int64_t pause_us = std::clamp(slow_us, kRetryUs, kMaxRetryUs);
    if (!Sleep(pause_us)) {
      return;
    }
  }
}

absl::Status Link::AttachAndWatch() {
  absl::StatusOr<shm::OwnedFd> socket = shm::ConnectUnix(options_.socket_path + ".fd");
  if (!socket.ok()) {
    return socket.status();
  }
  v1::AttachRequest request;
  request.set_nonce(RandomNonce());
  request.set_region_bytes(exchange_->header().region_bytes);
  request.set_layout_version(exchange_->header().layout_version);
  request.set_first_attachment(!pool_in_use_);
  absl::Status sent =
      shm::SendDescriptor(socket->get(), exchange_->region().fd(), request.nonce(), kCallUs);
  if (!sent.ok()) {
    return sent;
  }
  AttachStream stream(options_.socket_path, request);
  if (absl::Status attached = WaitAttached(&stream, *socket); !attached.ok()) {
    return attached;
  }
  const absl::Status why = Watch(&stream, *socket);
  if (!Stopping()) {
    Lost(why, *socket);
  }
  return absl::OkStatus();
}

// Until the worker says that it mapped the region, and up from then on.
absl::Status Link::WaitAttached(AttachStream* stream, const shm::OwnedFd& socket) {
  const base::Clock& clock = base::SystemClock();
  const int64_t deadline_us = clock.NowUs() + kAttachUs;
  std::optional<v1::AttachEvent> event;
  while (!event && !stream->ended()) {
    event = stream->Poll(kWatchUs);
    if (Stopping() || shm::PeerClosed(socket.get()) || clock.NowUs() > deadline_us) {
      return absl::UnavailableError("the CPU attention worker did not answer");
    }
  }
  if (!event) {
    return stream->status();
  }
  if (!event->has_attached()) {
    return absl::InternalError("the CPU attention worker's first event is not Attached");
  }
  absl::Status configured =
      stream->Configure(options_.cores_shared_with_device ? v1::ConfigureRequest::WAIT_POLICY_YIELD
                                                          : v1::ConfigureRequest::WAIT_POLICY_SPIN,
                        kCallUs);
  if (!configured.ok()) {
    return configured;
  }
  const v1::DescribeResponse& description = event->attached().description();
  base::LogInfo("CPU attention worker describes itself",
                {{"pid", description.pid()},
                 {"isa", description.isa()},
                 {"threads", description.cores_size()},
                 {"placement", description.placement_reason()}});
  exchange_->ResetAfterDeath();
  up_.store(true);
  callbacks_.on_up(base::StrCat(description.version(), " ", description.isa(), " on ",
                                description.cores_size(), " cores, pages ",
                                description.page_kind()));
  return absl::OkStatus();
}

// Until the attachment ends; returns why.
absl::Status Link::Watch(AttachStream* stream, const shm::OwnedFd& socket) {
  const base::Clock& clock = base::SystemClock();
  uint64_t beat = exchange_->peer_heartbeat();
  int64_t beat_us = clock.NowUs();
  int64_t looked_us = beat_us;
  while (!Stopping()) {
    if (const std::optional<v1::AttachEvent> event = stream->Poll(kWatchUs)) {
      OnEvent(*event);
    }
    exchange_->Heartbeat();
    if (stream->ended()) {
      return absl::UnavailableError("its control stream ended");
    }
    if (shm::PeerClosed(socket.get())) {
      return absl::UnavailableError("its socket is at its end");
    }
    if (const uint64_t now = exchange_->peer_heartbeat(); now != beat) {
      beat = now;
      beat_us = clock.NowUs();
    }
    // Whoever stood still itself (a frozen container) cannot tell whether the other did.
    const int64_t now_us = clock.NowUs();
    if (now_us - looked_us > kPausedUs) {
      beat_us = now_us;
    }
    looked_us = now_us;
    if (now_us - beat_us > options_.heartbeat_timeout_us) {
      return absl::DeadlineExceededError("its heartbeat stopped");
    }
  }
  return absl::OkStatus();
}

void Link::OnEvent(const v1::AttachEvent& event) {
  switch (event.event_case()) {
    case v1::AttachEvent::kExtentsReady: {
      const exchange::RegionHeader& header = exchange_->header();
      const uint64_t block_bytes = header.pool_bytes / header.geometry.num_blocks;
      const uint64_t bytes = std::min(header.pool_bytes, uint64_t{event.extents_ready().count()} *
                                                             header.geometry.extent_bytes);
      pool_in_use_ = pool_in_use_ || bytes > 0;
      callbacks_.on_blocks_ready(static_cast<int32_t>(bytes / block_bytes));
      break;
    }
    case v1::AttachEvent::kWarning:
      base::LogWarning("CPU attention worker warns", {{"message", event.warning().message()}});
      break;
    case v1::AttachEvent::kStepFailed:
      base::LogError(
          "CPU attention worker refused a step",
          {{"epoch", event.step_failed().epoch()}, {"message", event.step_failed().message()}});
      break;
    default:
      break;
  }
}

// Frees whoever waits for the worker, makes sure that it is gone, and only then says so: CPU blocks
// may be reused after on_down.
void Link::Lost(const absl::Status& why, const shm::OwnedFd& socket) {
  base::LogWarning("CPU attention worker lost", {{"reason", Text(why)}});
  up_.store(false);
  exchange_->Release();
  const base::Clock& clock = base::SystemClock();
  const bool hangs = why.code() == absl::StatusCode::kDeadlineExceeded;
  int64_t kill_us = hangs ? clock.NowUs() : clock.NowUs() + kCallUs;
  while (!shm::PeerClosed(socket.get())) {
    if (clock.NowUs() >= kill_us) {
      Kill(socket);
      kill_us = clock.NowUs() + kCallUs;
    }
    if (!Sleep(kRetryUs)) {
      return;
    }
  }
  callbacks_.on_down();
}

void Link::Kill(const shm::OwnedFd& socket) const {
  // The kernel's word for who holds the other end, which is open, so the number is not a new
  // process's.
  const absl::StatusOr<shm::PeerCredentials> peer = shm::PeerCredentialsOf(socket.get());
  if (!peer.ok() || peer->pid <= 0 || peer->pid == getpid() || peer->uid != getuid()) {
    base::LogError("a hanging CPU attention worker cannot be killed from here");
    return;
  }
  base::LogWarning("killing the hanging CPU attention worker", {{"pid", peer->pid}});
  kill(peer->pid, SIGKILL);
}

}  // namespace

std::unique_ptr<CpuAttentionLink> CpuAttentionLink::Start(const Options& options,
                                                          exchange::DeviceSide* exchange,
                                                          Callbacks callbacks) {
  return std::make_unique<Link>(options, exchange, std::move(callbacks));
}

}  // namespace tandem::gpu_worker
