tandem_library(tandem_sampling SOURCES pseudo_sampling.cc sampling.cc DEPS absl::flat_hash_map absl::statusor)
# Comparisons of floats may trap, so that by default no loop with one vectorises; NaN keeps its meaning.
set_source_files_properties(sampling.cc PROPERTIES COMPILE_OPTIONS "-fno-trapping-math;-fno-math-errno")
