#include "gpu_worker/ops/host/avx2_matmul-inl.h"
