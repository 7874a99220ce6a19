#define TANDEM_NAME "avx2"
#define TANDEM_TABLE Avx2SubTileKernels
#include "common/kv_layout/sub_tile-inl.h"
