// libcublasLt.so.13 for tests: the functions that device/cuda/cuda_matmul.cc calls, for products as
// it asks for them.
#include <cublasLt.h>
#include <cuda.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/bfloat16.h"
#include "tests/fakes/cuda/handles.h"

namespace {

struct Operation {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const float* bias = nullptr;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows;
  uint64_t cols;
  int64_t stride;  // of columns
  size_t bytes() const {
    return ((cols - 1) * static_cast<uint64_t>(stride) + rows) * (type == CUDA_R_32F ? 4 : 2);
  }
  bool LiesIn(int device, const void* data) const {
    return tandem::fake_cuda::IsDeviceMemory(data, bytes(), device);
  }
};

uint16_t HalfOf(float value);

float Load(cudaDataType_t type, const void* data, size_t index) {
  if (type == CUDA_R_32F) {
    return static_cast<const float*>(data)[index];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == CUDA_R_16BF ? tandem::base::BFloat16ToFloat(bits)
                             : tandem::base::HalfToFloat(bits);
}

void Store(cudaDataType_t type, void* data, size_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] =
        type == CUDA_R_16BF ? tandem::base::FloatToBFloat16(value) : HalfOf(value);
  }
}

uint16_t HalfOf(float value) {
  const auto half = static_cast<_Float16>(value);
  uint16_t bits = 0;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

// A product that waits in a stream.
struct Product {
  Operation operation;
  Layout weights;
  Layout in;
  Layout out;
  const void* a;
  const void* b;
  void* d;
  float beta;

  void Run() const {
    const size_t n = weights.cols;
    const size_t k = weights.rows;
    std::vector<float> rows(in.cols * k);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = Load(in.type, b, i);
    }
    std::vector<float> column(k);
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < k; ++i) {
        column[i] = Load(weights.type, a, j * k + i);
      }
      for (size_t row = 0; row < in.cols; ++row) {
        const size_t at = row * n + j;
        float value = Dot(column.data(), rows.data() + row * k, k);
        value += beta != 0.0f ? beta * Load(out.type, d, at) : 0.0f;
        value += operation.epilogue == CUBLASLT_EPILOGUE_BIAS ? operation.bias[j] : 0.0f;
        Store(out.type, d, at, value);
      }
    }
  }

  static float Dot(const float* a, const float* b, size_t count) {
    float sums[8] = {};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) {
        sums[lane] += a[i + lane] * b[i + lane];
      }
    }
    for (; i < count; ++i) {
      sums[0] += a[i] * b[i];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
};

template <typename T>
cublasStatus_t Take(const void* value, size_t bytes, T* to) {
  if (bytes != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// A graph runs it again and again, for as long as it lives: kept until the process ends.
cublasStatus_t Capture(CUstream stream, Product* product) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::unique_ptr<Product>>;
  const std::lock_guard lock(mutex);
  kept->emplace_back(product);
  const auto run = [](void* data) { static_cast<Product*>(data)->Run(); };
  return cuLaunchHostFunc(stream, run, product) == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}

Operation& Of(cublasLtMatmulDesc_t operation) { return *reinterpret_cast<Operation*>(operation); }
const Layout& Of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &Of(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  cudaDataType_t bias_type = CUDA_R_32F;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(value, bytes, &Of(operation).transpose_a);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(value, bytes, &Of(operation).epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(value, bytes, &Of(operation).bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Take(value, bytes, &bias_type);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
// Refuses a bias beside an odd number of rows, so that both ways of adding it are used.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  const bool shapes_meet = Of(a).rows == Of(b).rows && Of(a).cols == Of(d).rows &&
                           Of(b).cols == Of(d).cols && c == d &&
                           Of(operation).transpose_a == CUBLAS_OP_T;
  if (!shapes_meet || requested < 1) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *found = 0;
  if (Of(operation).epilogue == CUBLASLT_EPILOGUE_BIAS && Of(b).cols % 2 == 1) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  results[0] = {};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  if (*static_cast<const float*>(alpha) != 1.0f) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const int device = tandem::fake_cuda::DeviceOf(reinterpret_cast<CUstream>(stream));
  if (!Of(a_layout).LiesIn(device, a) || !Of(b_layout).LiesIn(device, b) ||
      !Of(d_layout).LiesIn(device, d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  auto* product = new Product{Of(operation),
                              Of(a_layout),
                              Of(b_layout),
                              Of(d_layout),
                              a,
                              b,
                              d,
                              *static_cast<const float*>(beta)};
  const auto run = [](void* data) {
    const std::unique_ptr<Product> taken(static_cast<Product*>(data));
    taken->Run();
  };
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  (void)cuStreamIsCapturing(reinterpret_cast<CUstream>(stream), &capturing);
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Capture(reinterpret_cast<CUstream>(stream), product);
  }
  if (cuLaunchHostFunc(reinterpret_cast<CUstream>(stream), run, product) != CUDA_SUCCESS) {
    delete product;
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
