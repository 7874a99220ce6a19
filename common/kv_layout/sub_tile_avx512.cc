#define TANDEM_NAME "avx512"
#define TANDEM_TABLE Avx512SubTileKernels
#include "common/kv_layout/sub_tile-inl.h"
