#include "router/frontend/endpoints/stats.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "router/frontend/json_text.h"

namespace tandem::router {
namespace {

constexpr int kMaxWaiting = 64;
constexpr int64_t kRefreshUs = 400'000;
constexpr int64_t kWorkerTimeoutUs = 500'000;
constexpr size_t kMaxShownRequests = 100;

void Add(const v1::WorkerState& state, v1::WorkerState* sum) {
  sum->set_waiting(sum->waiting() + state.waiting());
  sum->set_running(sum->running() + state.running());
  sum->set_gpu_blocks_total(sum->gpu_blocks_total() + state.gpu_blocks_total());
  sum->set_gpu_blocks_used(sum->gpu_blocks_used() + state.gpu_blocks_used());
  sum->set_cpu_blocks_total(sum->cpu_blocks_total() + state.cpu_blocks_total());
  sum->set_cpu_blocks_used(sum->cpu_blocks_used() + state.cpu_blocks_used());
  sum->set_decode_tokens_gpu(sum->decode_tokens_gpu() + state.decode_tokens_gpu());
  sum->set_decode_tokens_cpu(sum->decode_tokens_cpu() + state.decode_tokens_cpu());
  sum->set_steps_gpu_only(sum->steps_gpu_only() + state.steps_gpu_only());
  sum->set_steps_unified(sum->steps_unified() + state.steps_unified());
  sum->set_steps_asymmetric(sum->steps_asymmetric() + state.steps_asymmetric());
  sum->set_cpu_attention_read_bytes(sum->cpu_attention_read_bytes() +
                                    state.cpu_attention_read_bytes());
  sum->set_cpu_attention_up(sum->cpu_attention_up() || state.cpu_attention_up());
}

}  // namespace

StatsSource::~StatsSource() {
  pool_.stop();
  pool_.join();
}

bool StatsSource::Get(Requests requests, std::function<void(std::string json)> done) {
  if (waiting_.fetch_add(1) >= kMaxWaiting) {
    waiting_.fetch_sub(1);
    return false;
  }
  boost::asio::post(pool_, [this, requests = std::move(requests), done = std::move(done)] {
    Refresh();
    done(Render(requests));
    waiting_.fetch_sub(1);
  });
  return true;
}

void StatsSource::Refresh() {
  if (refreshed_us_ != 0 && clock_->NowUs() - refreshed_us_ < kRefreshUs) {
    return;
  }
  v1::WorkerState sum;
  workers_seen_ = 0;
  for (WorkerClient* worker : workers_) {
    if (const auto state = worker->GetState(kWorkerTimeoutUs); state.ok()) {
      Add(*state, &sum);
      ++workers_seen_;
    }
  }
  sum_ = std::move(sum);
  refreshed_us_ = clock_->NowUs();
}

std::string StatsSource::Render(const Requests& requests) const {
  const int64_t now_us = clock_->NowUs();
  Json shown = Json::array();
  for (size_t i = 0; i < std::min(requests.size(), kMaxShownRequests); ++i) {
    const int64_t tokens = requests[i]->tokens.load(std::memory_order_relaxed);
    shown.push_back({{"id", requests[i]->id},
                     {"state", tokens > 0 ? "decode" : "prefill"},
                     {"tokens", tokens},
                     {"age_ms", (now_us - requests[i]->started_us) / 1000}});
  }
  const Json stats = {
      {"time_us", refreshed_us_},
      {"workers", workers_seen_},
      {"waiting", sum_.waiting()},
      {"running", sum_.running()},
      {"cpu_attention_up", sum_.cpu_attention_up()},
      {"kv_blocks",
       {{"gpu_used", sum_.gpu_blocks_used()},
        {"gpu_total", sum_.gpu_blocks_total()},
        {"cpu_used", sum_.cpu_blocks_used()},
        {"cpu_total", sum_.cpu_blocks_total()}}},
      {"decode_tokens", {{"gpu", sum_.decode_tokens_gpu()}, {"cpu", sum_.decode_tokens_cpu()}}},
      {"steps",
       {{"gpu_only", sum_.steps_gpu_only()},
        {"unified", sum_.steps_unified()},
        {"asymmetric", sum_.steps_asymmetric()}}},
      {"cpu_attention_read_bytes", sum_.cpu_attention_read_bytes()},
      {"requests_total", requests.size()},
      {"requests", std::move(shown)}};
  return stats.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::router
