# Kernels (compiled by nvcc, and for the CPU by the tests) and what launches them.
set(TANDEM_CUDA_KERNELS argmax.cu attention_plain.cu copy_kv.cu decode_attention.cu exchange_rows.cu prefill_attention.cu rows.cu sample.cu store_kv.cu)
set(TANDEM_CUDA_LAUNCHERS launch_attention.cc launch_kv.cc launch_rows.cc sample_rows.cc)
