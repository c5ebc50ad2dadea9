# trireme_module(name [COLD] USES modules... LIBRARIES targets... PRECOMPILE headers...)
# One static library per module, from every source below src/<name>/. Folders named cuda are compiled
# only where CUDA was found, files named without_cuda.cpp only where it was not; cudnn_*.cpp and
# without_cudnn.cpp are the same for cuDNN and its frontend, nccl_library.cpp and without_nccl.cpp for
# NCCL. PRECOMPILE names system headers; sources include what they use all the same. Modules after
# params that name none reuse its, and so must have OpenMP, as it has. COLD: nothing in the module is
# called often enough for -O3 to matter; -O1 compiles it in about 60 % of the time, and six sources
# at once (TRIREME_UNITY) in half of that. (GCC 12 has the false warnings of TriremeOptions.cmake under
# another name then.)
function(trireme_module name)
  cmake_parse_arguments(arg "COLD" "" "USES;LIBRARIES;PRECOMPILE" ${ARGN})
  list(TRANSFORM arg_USES PREPEND trireme_)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  if(TRIREME_HAS_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cu")
    list(APPEND sources ${kernels})
    list(FILTER sources EXCLUDE REGEX "/without_cuda\\.cpp$")
    if(TARGET trireme_cudnn_frontend)
      list(FILTER sources EXCLUDE REGEX "/without_cudnn\\.cpp$")
    else()
      list(FILTER sources EXCLUDE REGEX "/cudnn_[a-z_]*\\.cpp$")
    endif()
  else()
    list(FILTER sources EXCLUDE REGEX "/src/${name}/(.*/)?cuda/")
  endif()
  if(TARGET trireme_nccl)
    list(FILTER sources EXCLUDE REGEX "/without_nccl\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/nccl_library\\.cpp$")
  endif()
  if(sources)
    add_library(trireme_${name} STATIC ${sources})
    target_link_libraries(trireme_${name} PRIVATE trireme_options)
    if(arg_COLD)
      set_target_properties(trireme_${name} PROPERTIES UNITY_BUILD ${TRIREME_UNITY} UNITY_BUILD_BATCH_SIZE 6)
      target_compile_options(trireme_${name} PRIVATE
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>
        $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds>
        # Of types in unnamed namespaces: a source is included once, as a header would not be.
        $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${TRIREME_UNITY}>>:-Wno-subobject-linkage>)
    endif()
    set(scope PUBLIC)
  else()
    add_library(trireme_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(trireme_${name} ${scope} "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(trireme_${name} ${scope} ${arg_USES} ${arg_LIBRARIES})
  if(sources AND arg_PRECOMPILE)
    list(TRANSFORM arg_PRECOMPILE REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1>>")
    target_precompile_headers(trireme_${name} PRIVATE ${arg_PRECOMPILE})
  elseif(sources AND TARGET trireme_params)
    target_precompile_headers(trireme_${name} REUSE_FROM trireme_params)
  endif()
endfunction()
