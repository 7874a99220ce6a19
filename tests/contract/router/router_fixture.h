#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "router/frontend/router_server.h"
#include "tests/contract/router/http_client.h"
#include "tests/fakes/fake_worker.h"

namespace tandem::router {

using Json = nlohmann::ordered_json;

// Something that another thread brings about; false only when it does not for very long.
inline bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline_us = base::SystemClock().NowUs() + 60'000'000;
  while (!condition()) {
    if (base::SystemClock().NowUs() > deadline_us) {
      return false;
    }
    // reason: polls what another thread or process brings about; no result depends on the time.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A router over real sockets in front of fake workers.
class RouterFixture : public testing::Test {
 protected:
  static fakes::FakeWorker::Options WorkerOptions() {
    fakes::FakeWorker::Options options;
    options.tokenizer_folder = TANDEM_TEST_DATA "/goldens/llama3-like";
    options.chat_template =
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}";
    return options;
  }

  fakes::FakeWorker& AddWorker(const fakes::FakeWorker::Options& options = WorkerOptions()) {
    auto worker = fakes::FakeWorker::Start(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    workers_.push_back(*std::move(worker));
    options_.workers.push_back(workers_.back()->address());
    return *workers_.back();
  }

  void StartRouter(bool wait_ready = true) {
    options_.listen = "127.0.0.1:0";
    options_.metrics_host = "127.0.0.1";
    options_.metrics_port = 0;
    auto router = RouterServer::Start(options_, &base::SystemClock());
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    if (wait_ready) {
      ASSERT_TRUE(Eventually([&] { return AllReady(); }));
    }
  }

  bool AllReady() {
    for (const std::string& worker : options_.workers) {
      if (Metric("tandem_router_worker_ready{worker=\"" + worker + "\"}") != 1) {
        return false;
      }
    }
    return true;
  }

  HttpReply Post(const std::string& path, const Json& body, const std::string& headers = "") {
    return PostText(path, body.dump(), headers);
  }
  HttpReply PostText(const std::string& path, const std::string& body,
                     const std::string& headers = "") {
    HttpClient client(router_->port());
    return client.Request("POST", path, body, headers);
  }
  HttpReply Get(const std::string& path, const std::string& headers = "") {
    HttpClient client(router_->port());
    return client.Request("GET", path, "", headers);
  }
  // A stream's joined text; the last event is checked to be [DONE].
  std::string StreamText(HttpClient* client) {
    std::string text;
    std::string last;
    while (const auto event = client->ReadEvent()) {
      last = *event;
      if (last == "[DONE]") {
        continue;
      }
      const Json chunk = Json::parse(last);
      EXPECT_TRUE(chunk.contains("choices")) << last;
      for (const Json& choice : chunk.value("choices", Json::array())) {
        text += choice.contains("text") ? choice["text"].get<std::string>()
                                        : choice["delta"]["content"].get<std::string>();
      }
    }
    EXPECT_EQ(last, "[DONE]");
    return text;
  }

  // A sample of the router's own metrics, -1 when it is not there.
  double Metric(const std::string& name_and_labels) {
    const std::string text = Get("/metrics").body;
    const size_t at = text.find("\n" + name_and_labels + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name_and_labels.size() + 2));
  }

  RouterOptions options_;
  std::vector<std::unique_ptr<fakes::FakeWorker>> workers_;
  std::unique_ptr<RouterServer> router_;
};

// Holds scripts back until the test lets them go on.
class Gate {
 public:
  void Open() { open_ = true; }
  bool Wait() const {
    return Eventually([this] { return open_.load(); });
  }

 private:
  std::atomic<bool> open_ = false;
};

}  // namespace tandem::router
