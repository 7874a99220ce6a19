# Benchmarks of the CPU attention worker: they run the real program.
if(TARGET tandem_cpu_attention_link)
  tandem_library(tandem_cli_bench_cpu SOURCES attention_bench.cc attention_pool.cc exchange_bench.cc cpu_worker_harness.cc read_limit.cc
                 DEPS tandem_cpu_attention_link tandem_exchange tandem_kv_layout tandem_attention_kernels tandem_topology
                      tandem_shm tandem_base absl::status absl::statusor absl::strings nlohmann_json::nlohmann_json)
endif()
