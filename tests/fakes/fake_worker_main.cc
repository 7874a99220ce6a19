// A fake worker as a process of its own, for tests in which one dies, and for measuring a router:
// fake_worker --listen ADDR --tokenizer FOLDER [--die-after-tokens N] [--port-file FILE]

#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "common/base/config.h"
#include "common/base/files.h"
#include "tests/fakes/fake_worker.h"

int main(int argc, char** argv) {
  tandem::fakes::FakeWorker::Options options;
  int64_t die_after_tokens = -1;
  int64_t max_model_len = 4096;
  std::string port_file;
  tandem::base::ConfigSpec spec("fake-worker", "A GPU worker that computes nothing");
  spec.String("listen", &options.address, "gRPC address");
  spec.String("tokenizer", &options.tokenizer_folder, "folder with tokenizer.json");
  spec.Int("die-after-tokens", &die_after_tokens, -1, 1'000'000, "kills itself then");
  spec.Int("max-model-len", &max_model_len, 1, 1'000'000, "context");
  spec.String("port-file", &port_file, "gets the port");
  if (const auto exit_status = spec.ParseMain(argc, argv)) {
    return *exit_status;
  }
  options.die_after_tokens = static_cast<int32_t>(die_after_tokens);
  options.max_model_len = static_cast<int32_t>(max_model_len);
  const auto worker = tandem::fakes::FakeWorker::Start(options);
  if (!worker.ok()) {
    std::fprintf(stderr, "fake-worker: %s\n", std::string(worker.status().message()).c_str());
    return 1;
  }
  if (!port_file.empty()) {
    const std::string& address = (*worker)->address();
    const int port = std::atoi(address.c_str() + address.rfind(':') + 1);
    if (!tandem::base::WritePortFile(port_file, {port}).ok()) {
      return 1;
    }
  }
  while (true) {
    pause();
  }
}
