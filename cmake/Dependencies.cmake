# Third-party packages, found once and given one name each: ext::<package>. Versions of Debian 12
# and of Ubuntu 24.04. A library names what it uses in LINK; nothing is global.
# tools/install_deps.sh installs all of them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Names the existing target `target` ext::<name>.
function(aisp_external name target)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "package ${name}: target ${target} is missing; run tools/install_deps.sh")
  endif()
  add_library(aisp_ext_${name} INTERFACE)
  target_link_libraries(aisp_ext_${name} INTERFACE ${target})
  add_library(ext::${name} ALIAS aisp_ext_${name})
endfunction()

find_package(fmt REQUIRED)
aisp_external(fmt fmt::fmt)

find_package(spdlog REQUIRED)
aisp_external(spdlog spdlog::spdlog)

find_package(prometheus-cpp CONFIG REQUIRED)
aisp_external(prometheus prometheus-cpp::core)

find_package(yaml-cpp REQUIRED)
if(TARGET yaml-cpp::yaml-cpp)
  aisp_external(yaml yaml-cpp::yaml-cpp)
else()
  aisp_external(yaml yaml-cpp)
endif()

find_package(simdjson REQUIRED)
aisp_external(simdjson simdjson::simdjson)

find_package(Protobuf REQUIRED)
aisp_external(protobuf protobuf::libprotobuf)

pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET libxxhash)
aisp_external(xxhash PkgConfig::libxxhash)

pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
aisp_external(pcre2 PkgConfig::pcre2)

# Header-only: nlohmann-json, Boost (Beast, Asio), tl::expected. They are in the system include
# path.
find_path(AISP_EXPECTED_INCLUDE tl/expected.hpp REQUIRED)
find_path(AISP_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
find_path(AISP_BOOST_INCLUDE boost/beast.hpp REQUIRED)
foreach(header_only IN ITEMS expected json boost)
  string(TOUPPER ${header_only} upper)
  add_library(aisp_found_${header_only} INTERFACE)
  target_include_directories(aisp_found_${header_only} SYSTEM INTERFACE "${AISP_${upper}_INCLUDE}")
  aisp_external(${header_only} aisp_found_${header_only})
endforeach()

# Optional: internationalised labels of the format `hostname`.
pkg_check_modules(idn2 IMPORTED_TARGET libidn2)
if(idn2_FOUND)
  aisp_external(idn2 PkgConfig::idn2)
endif()

pkg_check_modules(ucx IMPORTED_TARGET ucx)
if(ucx_FOUND)
  aisp_external(ucx PkgConfig::ucx)
endif()

find_package(OpenSSL REQUIRED)
aisp_external(openssl OpenSSL::SSL)

# gRPC stays out of the ThreadSanitizer build altogether.
if(NOT AISP_TSAN)
  find_package(CURL REQUIRED)
  aisp_external(curl CURL::libcurl)
  # pkg_check_modules queries a package two dozen times, and each query about gRPC's hundred
  # packages takes half a second.
  if(NOT AISP_GRPC_FLAGS)
    foreach(kind IN ITEMS cflags libs)
      execute_process(COMMAND "${PKG_CONFIG_EXECUTABLE}" --${kind} grpc++
        OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR "package grpc++ is missing; run tools/install_deps.sh")
      endif()
      separate_arguments(flags UNIX_COMMAND "${flags}")
      set(AISP_GRPC_${kind} "${flags}" CACHE INTERNAL "pkg-config --${kind} grpc++")
    endforeach()
    set(AISP_GRPC_FLAGS ON CACHE INTERNAL "AISP_GRPC_cflags and AISP_GRPC_libs are known")
  endif()
  add_library(aisp_found_grpc INTERFACE)
  target_compile_options(aisp_found_grpc INTERFACE ${AISP_GRPC_cflags})
  target_link_libraries(aisp_found_grpc INTERFACE ${AISP_GRPC_libs})
  aisp_external(grpc aisp_found_grpc)
  find_program(AISP_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
endif()

if(AISP_TESTS)
  find_package(GTest REQUIRED)
  aisp_external(gtest GTest::gtest)
  aisp_external(gmock GTest::gmock)
  aisp_external(gmock_main GTest::gmock_main)
endif()
