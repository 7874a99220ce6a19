#define TANDEM_NAME "baseline"
#define TANDEM_TABLE BaselineSubTileKernels
#include "common/kv_layout/sub_tile-inl.h"
