#define TANDEM_LANES 16
#define TANDEM_NAME "avx512"
#define TANDEM_TABLE Avx512Kernels
#include "gpu_worker/ops/host/kernels-inl.h"
