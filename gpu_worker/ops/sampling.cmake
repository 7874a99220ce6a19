tandem_library(tandem_sampling SOURCES sampling.cc DEPS absl::flat_hash_map absl::statusor)
