# CUDA C++ for the folders that use it. One architecture: Hopper with its own instructions (sm_90a).
# Architecture and dialect are given as flags, because CMake 3.25 is older than this nvcc and knows
# neither.
#
# AISP_CUDA_RELEASE adds code for Ampere and Ada (sm_80) and Blackwell (sm_100a, sm_120a) to the
# files that do not need Hopper's instructions. That code has never run on those GPUs.
option(AISP_CUDA_RELEASE "Also compile what is not Hopper's own for sm_80, sm_100a and sm_120a" OFF)
set(AISP_CUDA_RELEASE_FLAGS "")
foreach(arch IN ITEMS 80 100a 120a)
  list(APPEND AISP_CUDA_RELEASE_FLAGS "-gencode=arch=compute_${arch},code=sm_${arch}")
endforeach()
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_FLAGS_INIT "-gencode=arch=compute_90a,code=sm_90a")
if(AISP_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${AISP_CCACHE}")
endif()
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")
find_package(CUDAToolkit REQUIRED)
