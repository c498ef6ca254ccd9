# CUDA C++ for the folders that have it. One architecture, Hopper with its own instructions (sm_90a). Architecture and dialect are
# given as flags: CMake 3.25 is older than this nvcc and knows neither.
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
