# The CUDA device: built where the toolkit is there, whatever GPU the machine has. No CUDA library is linked: the driver and cuBLASLt are found
# when the device is opened, and nvcc makes images of our kernels that the driver loads.
find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_path(TANDEM_CUDA_INCLUDE cublasLt.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
set(TANDEM_CUDA_FOUND OFF)
if(TANDEM_NVCC AND TANDEM_CUDA_INCLUDE)
  set(TANDEM_CUDA_FOUND ON)
endif()
option(TANDEM_CUDA "Build the CUDA device (default: where the CUDA toolkit is)" ${TANDEM_CUDA_FOUND})
if(TANDEM_CUDA AND NOT TANDEM_CUDA_FOUND)
  message(FATAL_ERROR "TANDEM_CUDA: nvcc or cublasLt.h was not found; set CUDA_HOME or -DTANDEM_CUDA=OFF")
elseif(NOT TANDEM_CUDA)
  message(STATUS "no CUDA toolkit: building without the CUDA device (--device cuda will say so)")
endif()
