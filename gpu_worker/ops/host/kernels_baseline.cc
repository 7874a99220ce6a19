#define TANDEM_LANES 4
#define TANDEM_NAME "baseline"
#define TANDEM_TABLE BaselineKernels
#include "gpu_worker/ops/host/kernels-inl.h"
