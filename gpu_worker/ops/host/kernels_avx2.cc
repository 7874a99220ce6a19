#define TANDEM_LANES 8
#define TANDEM_NAME "avx2"
#define TANDEM_TABLE Avx2Kernels
#include "gpu_worker/ops/host/kernels-inl.h"
