# The attention kernels, what they stand on, and their tests, without the rest of the project's dependencies: for instruction sets that
# this machine does not have.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
include(TandemTargets)
add_custom_target(sanitized_tests)

# Of common/base only what has no dependencies.
tandem_library(tandem_base SOURCES ${CMAKE_SOURCE_DIR}/common/base/check.cc)
foreach(folder model_shape kv_layout attention_kernels)
  add_subdirectory(common/${folder})
endforeach()

set(TANDEM_GTEST_SOURCE /usr/src/googletest CACHE PATH "GoogleTest's sources (Debian: package googletest)")
set(INSTALL_GTEST OFF)
add_subdirectory(${TANDEM_GTEST_SOURCE} googletest EXCLUDE_FROM_ALL)
if(NOT TARGET GTest::gmock)
  add_library(GTest::gmock ALIAS gmock)
  add_library(GTest::gtest_main ALIAS gtest_main)
endif()
enable_testing()
add_subdirectory(tests/common/kv_layout)
add_subdirectory(tests/common/attention_kernels)
