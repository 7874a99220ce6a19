#define TANDEM_LANES 16
#include "gpu_worker/ops/host/amx_attention-inl.h"
