# Every library that the project needs. Each is in Debian, Spack and most centers' modules.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI 3.1 REQUIRED COMPONENTS C)
# C interface only: the C++ bindings left the MPI standard with version 3, but mpi.h may still have them.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
# oneDNN by header and library: its own package file requires OpenCL's headers, which CPUs do not need.
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED HINTS ${DNNL_ROOT} ENV DNNLROOT PATH_SUFFIXES include)
find_library(DNNL_LIBRARY dnnl REQUIRED HINTS ${DNNL_ROOT} ENV DNNLROOT PATH_SUFFIXES lib lib64)
add_library(DNNL::dnnl INTERFACE IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}" INTERFACE_LINK_LIBRARIES "${DNNL_LIBRARY}")
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)

find_library(TRIREME_SENTENCEPIECE_TRAIN sentencepiece_train REQUIRED
             HINTS ${sentencepiece_LIBRARY_DIRS})
add_library(trireme_sentencepiece_train INTERFACE)
target_link_libraries(trireme_sentencepiece_train INTERFACE ${TRIREME_SENTENCEPIECE_TRAIN})

add_library(trireme_hdf5 INTERFACE)
target_include_directories(trireme_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(trireme_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
target_compile_definitions(trireme_hdf5 INTERFACE ${HDF5_DEFINITIONS})
