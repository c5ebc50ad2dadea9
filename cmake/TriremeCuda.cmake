# Looks for CUDA; without it everything but the GPU backend is built. Sets TRIREME_HAS_CUDA, and the
# targets trireme_cudnn, trireme_cudnn_frontend and trireme_nccl if these libraries are found.
set(TRIREME_CUDA "AUTO" CACHE STRING "Build for NVIDIA GPUs: AUTO (where CUDA is found), ON or OFF")
set_property(CACHE TRIREME_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TRIREME_HAS_CUDA OFF)

if(TRIREME_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (TRIREME_CUDA=OFF)")
  return()
endif()

set(trireme_cuda_why)
find_package(CUDAToolkit 12.0 QUIET)
if(NOT CUDAToolkit_FOUND)
  set(trireme_cuda_why "no CUDA toolkit of version 12 or later")
else()
  if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  # The kernels use A100's instructions alone. So its PTX serves H100 too, and what comes after: one
  # pass of the compiler instead of one for each architecture.
  set(trireme_cuda_code "${CMAKE_CUDA_ARCHITECTURES}")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    set(trireme_cuda_code "sm_80, sm_90 and PTX of compute_80")
    set(trireme_cuda_generate " --generate-code=arch=compute_80,code=[compute_80,sm_80,sm_90]")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(trireme_cuda_why "nvcc does not work with this C++ compiler")
  elseif(NOT TARGET CUDA::cublasLt)
    set(trireme_cuda_why "the toolkit has no cuBLASLt")
  endif()
endif()

if(trireme_cuda_why)
  if(TRIREME_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIREME_CUDA = ON: ${trireme_cuda_why}; install it, or name it in CUDAToolkit_ROOT")
  endif()
  message(STATUS "CUDA: skipped, ${trireme_cuda_why}")
  return()
endif()

enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that CUDA::cudart is
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# nvcc supports C++20 since version 12; CMake 3.25 does not know it yet.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
string(APPEND CMAKE_CUDA_FLAGS " -lineinfo")  # for profilers and compute-sanitizer; no code changes
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0)
  string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")  # a sixth, with the line numbers
endif()
string(APPEND CMAKE_CUDA_FLAGS "${trireme_cuda_generate}")
set(TRIREME_HAS_CUDA ON)

# Defines target trireme_<name> for an NVIDIA library outside the toolkit, by header and library.
function(trireme_nvidia_library name header library root)
  find_path(TRIREME_${root}_INCLUDE ${header}
            HINTS ${${root}_ROOT} ENV ${root}_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(TRIREME_${root}_LIBRARY ${library}
               HINTS ${${root}_ROOT} ENV ${root}_ROOT ${CUDAToolkit_LIBRARY_DIR} "${CUDAToolkit_TARGET_DIR}/lib"
               PATH_SUFFIXES lib lib64)
  mark_as_advanced(TRIREME_${root}_INCLUDE TRIREME_${root}_LIBRARY)
  if(TRIREME_${root}_INCLUDE AND TRIREME_${root}_LIBRARY)
    add_library(trireme_${name} INTERFACE)
    target_include_directories(trireme_${name} SYSTEM INTERFACE "${TRIREME_${root}_INCLUDE}")
    target_link_libraries(trireme_${name} INTERFACE "${TRIREME_${root}_LIBRARY}" CUDA::cudart)
  endif()
endfunction()
trireme_nvidia_library(cudnn cudnn.h cudnn CUDNN)
trireme_nvidia_library(nccl nccl.h nccl NCCL)
# cuDNN's graphs are built through its header-only frontend, which the Python package
# nvidia-cudnn-frontend holds too; scripts/deps.sh takes them from there.
find_path(TRIREME_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
          HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${CUDAToolkit_INCLUDE_DIRS}
                "${PROJECT_SOURCE_DIR}/build/deps/cudnn-frontend" PATH_SUFFIXES include)
mark_as_advanced(TRIREME_CUDNN_FRONTEND_INCLUDE)
if(TARGET trireme_cudnn AND TRIREME_CUDNN_FRONTEND_INCLUDE)
  file(STRINGS "${TRIREME_CUDNN_INCLUDE}/cudnn_version.h" trireme_cudnn_major REGEX "define CUDNN_MAJOR")
  string(REGEX MATCH "[0-9]+" trireme_cudnn_major "${trireme_cudnn_major}")
  add_library(trireme_cudnn_frontend INTERFACE)
  target_include_directories(trireme_cudnn_frontend SYSTEM INTERFACE
                             "${TRIREME_CUDNN_FRONTEND_INCLUDE}" "${TRIREME_CUDNN_INCLUDE}")
  # Its serialization is not used, and brings a JSON library of its own. cuDNN is loaded when a GPU
  # first needs it (src/ops/cuda/cudnn_attention.cpp).
  target_compile_definitions(trireme_cudnn_frontend INTERFACE
    CUDNN_FRONTEND_SKIP_JSON_LIB NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
    "TRIREME_CUDNN=\"libcudnn.so.${trireme_cudnn_major}\""
    "TRIREME_CUDART=\"libcudart.so.${CUDAToolkit_VERSION_MAJOR}\"")
  target_link_libraries(trireme_cudnn_frontend INTERFACE CUDA::cudart ${CMAKE_DL_LIBS})
endif()

set(trireme_cuda_found "CUDA: ${CUDAToolkit_VERSION} for ${trireme_cuda_code}")
foreach(name cudnn cudnn_frontend nccl)
  if(TARGET trireme_${name})
    string(APPEND trireme_cuda_found ", ${name}")
  else()
    string(APPEND trireme_cuda_found ", no ${name}")
  endif()
endforeach()
message(STATUS "${trireme_cuda_found}")
