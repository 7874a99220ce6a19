# Cross compiling for 64-bit ARM with Debian's compiler; tests run under qemu-user. TANDEM_AARCH64_SYSROOT: folder with libraries for
# arm64 (scripts/check_aarch64.sh fills it).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TANDEM_AARCH64_SYSROOT)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${TANDEM_AARCH64_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Every feature that the kernels know, and vectors of 256 bits, as a Neoverse V1 has them.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;max,sve256=on;-L;/usr/aarch64-linux-gnu;-E;TANDEM_EMULATED=1;-E;LD_LIBRARY_PATH=${TANDEM_AARCH64_SYSROOT}/usr/lib/aarch64-linux-gnu)
