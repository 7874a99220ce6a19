#include "gpu_worker/ops/host/amx_matmul-inl.h"
