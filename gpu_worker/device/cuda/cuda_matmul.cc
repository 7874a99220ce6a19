#include "gpu_worker/device/cuda/cuda_matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/shared_library.h"

namespace tandem::gpu_worker::device {
namespace {

#define TANDEM_CUBLAS_FUNCTIONS(X)   \
  X(cublasLtCreate)                  \
  X(cublasLtDestroy)                 \
  X(cublasLtMatmul)                  \
  X(cublasLtMatmulAlgoGetHeuristic)  \
  X(cublasLtMatmulDescCreate)        \
  X(cublasLtMatmulDescDestroy)       \
  X(cublasLtMatmulDescSetAttribute)  \
  X(cublasLtMatrixLayoutCreate)      \
  X(cublasLtMatrixLayoutDestroy)     \
  X(cublasLtMatmulPreferenceCreate)  \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute)

struct BlasApi {
#define TANDEM_CUBLAS_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_CUBLAS_FUNCTIONS(TANDEM_CUBLAS_MEMBER)
#undef TANDEM_CUBLAS_MEMBER
};

absl::StatusOr<BlasApi> LoadBlas() {
  const absl::StatusOr<void*> library = OpenLibrary({"libcublasLt.so.13", "libcublasLt.so.12"});
  if (!library.ok()) {
    return absl::UnavailableError(absl::StrCat("--device cuda needs cuBLASLt of CUDA 13 or 12: ",
                                               library.status().message()));
  }
  BlasApi api;
#define TANDEM_CUBLAS_FIND(name)                                                           \
  {                                                                                        \
    const absl::StatusOr<void*> found = FindFunction(*library, #name);                     \
    if (!found.ok()) {                                                                     \
      return absl::UnavailableError(absl::StrCat("cuBLASLt: ", found.status().message())); \
    }                                                                                      \
    api.name = reinterpret_cast<decltype(api.name)>(*found);                               \
  }
  TANDEM_CUBLAS_FUNCTIONS(TANDEM_CUBLAS_FIND)
#undef TANDEM_CUBLAS_FIND
  return api;
}

absl::Status Check(cublasStatus_t status, const char* what) {
  return status == CUBLAS_STATUS_SUCCESS
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(what, ": cuBLAS error ", static_cast<int>(status)));
}

cudaDataType_t TypeOf(DType dtype) {
  return dtype == DType::kFloat32    ? CUDA_R_32F
         : dtype == DType::kBFloat16 ? CUDA_R_16BF
                                     : CUDA_R_16F;
}

constexpr uint32_t kMostAlignment = 256;
uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), kMostAlignment));
}

// What the choice of an algorithm depends on.
using ShapeKey = std::array<int64_t, 9>;
ShapeKey KeyOf(const CudaMatmulArgs& args, bool with_bias) {
  return {args.rows,
          args.n,
          args.k,
          static_cast<int64_t>(args.in_dtype),
          static_cast<int64_t>(args.out_dtype),
          args.accumulate ? 1 : 0,
          with_bias ? 1 : 0,
          std::min(AlignmentOf(args.weights), AlignmentOf(args.in)),
          AlignmentOf(args.out)};
}

// cuBLASLt works column by column: row-major out [rows, n] is column-major [n, rows].
class Shape {
 public:
  explicit Shape(const BlasApi& api) : api_(api) {}
  ~Shape() {
    for (cublasLtMatrixLayout_t layout : {weights_, in_, out_}) {
      if (layout != nullptr) {
        api_.cublasLtMatrixLayoutDestroy(layout);
      }
    }
    if (operation_ != nullptr) {
      api_.cublasLtMatmulDescDestroy(operation_);
    }
  }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;

  absl::Status Init(const CudaMatmulArgs& args, bool with_bias) {
    TANDEM_RETURN_IF_ERROR(
        Check(api_.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate"));
    TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    if (with_bias) {
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      TANDEM_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
      TANDEM_RETURN_IF_ERROR(SetBias(args.bias));
    }
    const auto n = static_cast<uint64_t>(args.n);
    const auto k = static_cast<uint64_t>(args.k);
    const auto rows = static_cast<uint64_t>(args.rows);
    TANDEM_RETURN_IF_ERROR(Layout(&weights_, TypeOf(args.in_dtype), k, n));
    TANDEM_RETURN_IF_ERROR(Layout(&in_, TypeOf(args.in_dtype), k, rows));
    return Layout(&out_, TypeOf(args.out_dtype), n, rows);
  }

  absl::Status SetBias(const float* bias) {
    return Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias));
  }

  // False: there is no algorithm.
  absl::StatusOr<bool> Choose(cublasLtHandle_t handle, const CudaMatmulArgs& args,
                              size_t workspace_bytes) {
    cublasLtMatmulPreference_t preference = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Check(api_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
    const uint32_t in_alignment = std::min(AlignmentOf(args.weights), AlignmentOf(args.in));
    const uint32_t out_alignment = AlignmentOf(args.out);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      (void)api_.cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = api_.cublasLtMatmulAlgoGetHeuristic(
        handle, operation_, weights_, in_, out_, out_, preference, 1, &result, &found);
    api_.cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
      return false;
    }
    TANDEM_RETURN_IF_ERROR(Check(status, "cublasLtMatmulAlgoGetHeuristic"));
    algorithm_ = result.algo;
    return true;
  }

  absl::Status Run(cublasLtHandle_t handle, const CudaMatmulArgs& args, void* workspace,
                   size_t workspace_bytes, void* stream) {
    const float alpha = 1.0f;
    const float beta = args.accumulate ? 1.0f : 0.0f;
    return Check(api_.cublasLtMatmul(handle, operation_, &alpha, args.weights, weights_, args.in,
                                     in_, &beta, args.out, out_, args.out, out_, &algorithm_,
                                     workspace, workspace_bytes, static_cast<cudaStream_t>(stream)),
                 "cublasLtMatmul");
  }

 private:
  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t name, T value) {
    return Check(api_.cublasLtMatmulDescSetAttribute(operation_, name, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  }
  absl::Status Layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                      uint64_t cols) {
    return Check(
        api_.cublasLtMatrixLayoutCreate(layout, type, rows, cols, static_cast<int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  }

  const BlasApi& api_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weights_ = nullptr;
  cublasLtMatrixLayout_t in_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

class BlasMatmul : public CudaMatmul {
 public:
  explicit BlasMatmul(const BlasApi& api) : api_(api) {}
  ~BlasMatmul() override {
    shapes_.clear();
    if (handle_ != nullptr) {
      api_.cublasLtDestroy(handle_);
    }
  }

  absl::Status Init(CudaDevice& device) {
    // NVIDIA's advice for Hopper; older ones want less.
    constexpr size_t kWorkspaceBytes = size_t{32} << 20;
    TANDEM_ASSIGN_OR_RETURN(workspace_,
                            device.Allocate(kWorkspaceBytes, "the matrix products' workspace"));
    return Check(api_.cublasLtCreate(&handle_), "cublasLtCreate");
  }

  absl::StatusOr<bool> Run(CudaStream& stream, const CudaMatmulArgs& args) override {
    if (args.bias != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(Shape * shape, Find(args, true));
      if (shape != nullptr) {
        TANDEM_RETURN_IF_ERROR(shape->SetBias(args.bias));
        TANDEM_RETURN_IF_ERROR(RunShape(*shape, stream, args));
        return true;
      }
    }
    TANDEM_ASSIGN_OR_RETURN(Shape * shape, Find(args, false));
    if (shape == nullptr) {
      return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for [", args.rows, ", ",
                                              args.k, "] times [", args.n, ", ", args.k, "]"));
    }
    TANDEM_RETURN_IF_ERROR(RunShape(*shape, stream, args));
    return args.bias == nullptr;
  }

 private:
  static constexpr size_t kMaxShapes = 8192;

  absl::Status RunShape(Shape& shape, CudaStream& stream, const CudaMatmulArgs& args) {
    return shape.Run(handle_, args, workspace_->data(), workspace_->bytes(), stream.handle());
  }

  // Null: there is no algorithm.
  absl::StatusOr<Shape*> Find(const CudaMatmulArgs& args, bool with_bias) {
    const ShapeKey key = KeyOf(args, with_bias);
    if (const auto found = shapes_.find(key); found != shapes_.end()) {
      return found->second.get();
    }
    if (shapes_.size() >= kMaxShapes) {
      shapes_.clear();
    }
    auto shape = std::make_unique<Shape>(api_);
    TANDEM_RETURN_IF_ERROR(shape->Init(args, with_bias));
    TANDEM_ASSIGN_OR_RETURN(const bool chosen, shape->Choose(handle_, args, workspace_->bytes()));
    return shapes_.emplace(key, chosen ? std::move(shape) : nullptr).first->second.get();
  }

  const BlasApi api_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<Buffer> workspace_;
  std::map<ShapeKey, std::unique_ptr<Shape>> shapes_;
};

}  // namespace

absl::Status CudaMatmul::Find() { return LoadBlas().status(); }

absl::StatusOr<std::unique_ptr<CudaMatmul>> CudaMatmul::Create(CudaDevice& device) {
  TANDEM_ASSIGN_OR_RETURN(const BlasApi api, LoadBlas());
  auto matmul = std::make_unique<BlasMatmul>(api);
  TANDEM_RETURN_IF_ERROR(matmul->Init(device));
  return matmul;
}

}  // namespace tandem::gpu_worker::device
