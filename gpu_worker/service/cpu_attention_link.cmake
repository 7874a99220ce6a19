tandem_library(tandem_cpu_attention_link SOURCES cpu_attention_link.cc attach_stream.cc
               DEPS tandem_exchange tandem_shm tandem_rpc tandem_proto tandem_base absl::status)
