# The three kinds of target in this project, and code generation for proto/.
#
# aisp_library(<folder> DEPS <folders> LINK <external targets>)
#   library aisp_<folder with _ for />
# aisp_executable(<name> MAIN <file.cc> DEPS <folders> LINK ...)
#   program build/bin/<name>
# aisp_test(<folder> DEPS <folders> LINK ... SOURCES ... LABEL ...)
#   GoogleTest program <folder with _>_test
# aisp_proto_library(<folder> DEPS <folders>)
#   aisp_proto and aisp_proto_grpc
#
# The root CMakeLists.txt adds every folder, nested ones too (kernels/cpu): a folder never adds its
# own subfolders.

# "kernels/cpu" -> "aisp_kernels_cpu", for a list.
function(aisp_target_names out)
  set(names "")
  foreach(folder IN LISTS ARGN)
    string(REPLACE "/" "_" name "${folder}")
    list(APPEND names "aisp_${name}")
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

# AISP_UNITY=N compiles up to N sources of a folder as one file, as CI does (decision 105). This
# takes a fifth to a half of the time, but a changed source recompiles its whole group.
# tools/unity_groups.py finds the sources that can share a file.
set(AISP_UNITY 0 CACHE STRING "Sources to compile as one file, at most; 0: each by itself")
if(AISP_UNITY)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(groups "${CMAKE_BINARY_DIR}/unity_groups.cmake")
  execute_process(COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/tools/unity_groups.py" --size "${AISP_UNITY}"
      --apart "${CMAKE_BINARY_DIR}/unity_apart"
    OUTPUT_FILE "${groups}" COMMAND_ERROR_IS_FATAL ANY)
  include("${groups}")
endif()

# Compiles this folder's sources in `target` in their groups, if AISP_UNITY is on.
function(aisp_unity target)
  if(NOT AISP_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${CMAKE_SOURCE_DIR}" OUTPUT_VARIABLE path)
    if(DEFINED "AISP_GROUP_${path}")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${AISP_GROUP_${path}}")
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# The library of one folder: every *.cc directly in it, except main.cc and *_main.cc, which are
# programs. Without sources it is a header-only library. DEPS are the folders that its headers or
# sources include; they are linked publicly. LINK (external targets, ext::...) is private;
# LINK_PUBLIC is for the few whose types appear in the headers.
function(aisp_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS;LINK;LINK_PUBLIC;DEFINITIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "aisp_library(${folder}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  aisp_target_names(target ${folder})
  aisp_target_names(deps ${arg_DEPS})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${folder}/*.cc")
  list(FILTER sources EXCLUDE REGEX "(/|_)main\\.cc$")
  if(sources)
    add_library(${target} STATIC ${sources})
    aisp_unity(${target})
    target_include_directories(${target} PUBLIC "${CMAKE_SOURCE_DIR}")
    target_compile_definitions(${target} PRIVATE ${arg_DEFINITIONS})
    target_link_libraries(${target}
      PUBLIC ${deps} ${arg_LINK_PUBLIC}
      PRIVATE ${arg_LINK} $<BUILD_INTERFACE:aisp_warnings>)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${target} INTERFACE ${deps} ${arg_LINK_PUBLIC} ${arg_LINK})
  endif()
endfunction()

# A program of this folder: its main file and the libraries that do the work.
function(aisp_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAIN" "DEPS;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_MAIN)
    message(FATAL_ERROR "aisp_executable(${name}): needs MAIN; unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  aisp_target_names(deps ${arg_DEPS})
  add_executable(${name} ${arg_MAIN})
  target_link_libraries(${name} PRIVATE ${deps} ${arg_LINK} aisp_warnings)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# The tests of one folder: every *_test.cc in tests/<folder>, and SOURCES (helpers, relative to that
# folder). CTest lists each TEST by name. A test finds third-party data under AISP_SHARED_DIR (and
# skips without it), fixtures and the story models under AISP_SOURCE_DIR. Their label is LABEL, else
# the folder's name; GPU_TESTS: a filter of tests whose label is gpu.
function(aisp_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;LABEL;GPU_TESTS" "DEPS;LINK;SOURCES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "aisp_test(${folder}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${folder}/*_test.cc")
  if(NOT sources)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # Sanitizers slow every test down several times.
  if(AISP_ASAN OR AISP_TSAN)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  string(REPLACE "/" "_" name "${folder}")
  aisp_target_names(deps ${arg_DEPS})
  add_executable(${name}_test ${sources} ${arg_SOURCES})
  aisp_unity(${name}_test)
  target_include_directories(${name}_test PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_definitions(${name}_test PRIVATE
    AISP_SHARED_DIR="${AISP_SHARED_DIR}" AISP_SOURCE_DIR="${CMAKE_SOURCE_DIR}" AISP_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name}_test PRIVATE ${deps} ${arg_LINK} ext::gmock_main aisp_warnings)
  # Tests run once but are compiled often: -O1 compiles a fifth faster (decision 080). The tested
  # libraries keep the flags that they ship with.
  target_compile_options(${name}_test PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O1>)
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  # One label for each test: gtest_discover_tests takes a list apart on its way, and keeps the
  # first.
  set(label "${name}")
  if(arg_LABEL)
    set(label "${arg_LABEL}")
  endif()
  set(discovery TEST_PREFIX "${folder}:" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60)
  if(arg_GPU_TESTS)
    gtest_discover_tests(${name}_test ${discovery} TEST_FILTER "${arg_GPU_TESTS}"
      PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS gpu)
    list(APPEND discovery TEST_FILTER "-${arg_GPU_TESTS}")
  endif()
  gtest_discover_tests(${name}_test ${discovery} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${label})
endfunction()

# aisp_<folder>: the messages (kv.pb.h) of every .proto in the folder, with the folder's own *.cc.
# aisp_<folder>_grpc: its services (kv.grpc.pb.h), for net/ alone; absent in the ThreadSanitizer
# build. The files import each other by bare name.
function(aisp_proto_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS")
  aisp_target_names(target ${folder})
  aisp_target_names(deps ${arg_DEPS})
  file(GLOB protos CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${folder}/*.proto")
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${folder}/*.cc")
  set(out "${CMAKE_BINARY_DIR}/generated/${folder}")
  file(MAKE_DIRECTORY "${out}")
  set(message_sources "")
  set(service_sources "")
  foreach(proto IN LISTS protos)
    get_filename_component(stem "${proto}" NAME_WE)
    set(messages "${out}/${stem}.pb.cc" "${out}/${stem}.pb.h")
    set(services "${out}/${stem}.grpc.pb.cc" "${out}/${stem}.grpc.pb.h")
    add_custom_command(
      OUTPUT ${messages}
      COMMAND protobuf::protoc "-I${CMAKE_SOURCE_DIR}/${folder}" "--cpp_out=${out}" "${proto}"
      DEPENDS ${protos}
      VERBATIM)
    add_custom_command(
      OUTPUT ${services}
      COMMAND protobuf::protoc "-I${CMAKE_SOURCE_DIR}/${folder}" "--grpc_out=${out}"
              "--plugin=protoc-gen-grpc=${AISP_GRPC_CPP_PLUGIN}" "${proto}"
      DEPENDS ${protos}
      VERBATIM)
    list(APPEND message_sources ${messages})
    list(APPEND service_sources ${services})
  endforeach()
  add_library(${target} STATIC ${message_sources} ${sources})
  target_include_directories(${target} SYSTEM PUBLIC "${out}")
  target_include_directories(${target} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC ext::protobuf ${deps})
  if(NOT AISP_TSAN)
    add_library(${target}_grpc STATIC ${service_sources})
    target_link_libraries(${target}_grpc PUBLIC ${target} ext::grpc)
    if(AISP_UNITY)
      set_target_properties(${target}_grpc PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3)
    endif()
  endif()
endfunction()

if(AISP_TESTS)
  include(GoogleTest)
endif()
