# meshnet_room(NAME [DEPS ...] [PRIVATE_DEPS ...]): one library per folder from its *.cc, and one test program from its *_test.cc.
# A room links only rooms of lower rows, so an include that points upward does not compile.
# g++ 12 sees an overlap in every `"text" + std::string(…)` that it inlines (GCC bug 105329), hence no -Wrestrict.
set(MESHNET_WARNINGS -Wall -Wextra -Wshadow$<$<CXX_COMPILER_ID:GNU>:=local> -Wnon-virtual-dtor -Woverloaded-virtual -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
set(MESHNET_SANITIZE "" CACHE STRING "Sanitizers for our own code (llama.cpp stays plain): address,undefined or thread")

# Options for every target of ours.
add_library(meshnet_options INTERFACE)
target_compile_options(meshnet_options INTERFACE ${MESHNET_WARNINGS})
target_include_directories(meshnet_options INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_link_libraries(meshnet_options INTERFACE Threads::Threads)
if(MESHNET_SANITIZE)
  # Instrumented code looks uninitialized to g++ where it is not (std::regex is one such place).
  target_compile_options(meshnet_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> -O1 -g -fsanitize=${MESHNET_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(meshnet_options INTERFACE -fsanitize=${MESHNET_SANITIZE})
endif()

# Long-running groups of tests carry a label; `scripts/test` runs them all.
function(meshnet_test target)
  cmake_parse_arguments(arg "" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE meshnet_options ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  # Real models take minutes on a quiet machine, and only who asks for them waits.
  set(properties TIMEOUT 300)
  if(arg_LABEL MATCHES "^real")
    set(properties TIMEOUT 3000)
  endif()
  if(arg_LABEL)
    list(APPEND properties LABELS ${arg_LABEL})
  endif()
  # Real processes compute with all cores and have deadlines: beside another test they would only measure each other.
  if(arg_LABEL STREQUAL "process")
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  # A parameterised test is called by its instance's name, not by a print of the parameter's bytes.
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES ${properties})
endfunction()

function(meshnet_room name)
  cmake_parse_arguments(arg "" "" "DEPS;PRIVATE_DEPS;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc *.h)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(meshnet_${name} STATIC ${sources})
  set_target_properties(meshnet_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(meshnet_${name} PUBLIC ${arg_DEPS} PRIVATE meshnet_options ${arg_PRIVATE_DEPS})
  if(BUILD_TESTING AND tests)
    meshnet_test(${name}_test SOURCES ${tests} DEPS meshnet_${name} ${arg_PRIVATE_DEPS} ${arg_TEST_DEPS})
  endif()
endfunction()
