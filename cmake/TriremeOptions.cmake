# Compiler options shared by every target of this project.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# Release keeps assertions: they cost nothing measurable.
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

add_library(trireme_options INTERFACE)
# For C++ files only: nvcc does not accept these flags, and CUDA files get their own.
set(trireme_cxx_options
  -Wall -Wextra -Wpedantic
  # Designated initializers name what differs; every member has a declared default.
  -Wno-missing-field-initializers
  # GCC 12 warns of copies inside std::string's operator+ and fmt::join that overlap or overflow,
  # falsely (its bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-stringop-overflow>
  $<$<BOOL:${TRIREME_WERROR}>:-Werror>
  # One rounding per written operation, on every machine: initial weights depend on it.
  -ffp-contract=off
  # Messages of failed assertions name files below the source tree.
  $<$<BOOL:${TRIREME_PACKAGE}>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
target_compile_options(trireme_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${trireme_cxx_options}>")
# Kernels state explicitly where a product is rounded before it is added.
set(trireme_cuda_options --expt-relaxed-constexpr
  -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off
  --display-error-number)
if(TRIREME_WERROR)
  list(APPEND trireme_cuda_options -Werror=cross-execution-space-call,deprecated-declarations
       -Xcompiler=-Werror)
endif()
target_compile_options(trireme_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${trireme_cuda_options}>")
if(TRIREME_SANITIZE)
  # GCC's documentation warns that its flow analysis gives false warnings in instrumented code.
  set(trireme_sanitize_options
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    -fsanitize=${TRIREME_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(trireme_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${trireme_sanitize_options}>")
  target_link_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE})
  add_library(trireme_keep_modules OBJECT "${PROJECT_SOURCE_DIR}/tests/support/keep_modules.cpp")
endif()

if(TRIREME_FUZZ)  # coverage for libFuzzer, whose main() only the targets link
  target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# Precompiled headers and ccache: its manual names both settings.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
  target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      "${TRIREME_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${TRIREME_CCACHE}")
endif()
