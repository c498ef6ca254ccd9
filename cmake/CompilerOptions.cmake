# The one place that sets compiler flags for the whole build.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()
# Line numbers in backtraces, without the four-fold object size of -g2. Assertions of the standard
# library stay off; our own invariants are AISP_CHECK and are always on.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
if(AISP_ASAN OR AISP_TSAN OR AISP_FUZZ)
  # Instrumented code compiles a third faster with -O1; the sanitizers find the same errors.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
endif()

# lld links these programs in a fifth of the time that GNU ld takes (decision 080); nothing else
# depends on it.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=lld AISP_LLD)
if(AISP_LLD)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

find_program(AISP_CCACHE ccache)
if(AISP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${AISP_CCACHE}")
endif()

# A bundle carries its libraries in lib/ beside bin/. RPATH, not RUNPATH: only RPATH also serves the
# libraries that our libraries need.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
add_link_options(-Wl,--disable-new-dtags)

# No absolute path of the build machine in the binaries; it also lets ccache share objects between
# build folders.
add_compile_options(
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}/=>
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>)

if(AISP_ASAN AND AISP_TSAN)
  message(FATAL_ERROR "AISP_ASAN and AISP_TSAN exclude each other; use two build folders")
endif()
if(AISP_ASAN)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(AISP_FUZZ)
  # Only the fuzzers are built in such a folder (target fuzz).
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(AISP_TSAN)
  # g++ warns that it cannot instrument atomic_thread_fence; the code that uses one says why it is
  # sound.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  include_directories(BEFORE SYSTEM ${CMAKE_SOURCE_DIR}/cmake/tsan)
  add_link_options(-fsanitize=thread)
endif()

# Warnings for our own sources; generated and third-party code does not link this.
add_library(aisp_warnings INTERFACE)
target_compile_options(aisp_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror>)
# In a unity build g++ mistakes the private declarations of each source for parts of a header.
if(AISP_UNITY)
  target_compile_options(aisp_warnings INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
# clang sees deprecated functions inside libstdc++'s own std::stable_sort.
target_compile_options(aisp_warnings INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
