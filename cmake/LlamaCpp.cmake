# Stock llama.cpp v0.5.0 as a static subproject, pinned by the hash of its working tree.
set(MESHNET_LLAMA_TREE fd570ef54b10ec5fecb739e7e04c8ce44a6f415a)

set(LLAMA_CPP_DIR "$ENV{LLAMA_CPP_DIR}" CACHE PATH "Working tree of llama.cpp v0.5.0 (default: where scripts/llama put it)")
if(NOT LLAMA_CPP_DIR)
  if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(cache_home "$ENV{XDG_CACHE_HOME}")
  else()
    set(cache_home "$ENV{HOME}/.cache")
  endif()
  set(LLAMA_CPP_DIR "${cache_home}/meshnet/llama.cpp" CACHE PATH "" FORCE)
endif()
if(NOT EXISTS "${LLAMA_CPP_DIR}/include/llama.h")
  message(FATAL_ERROR "No llama.cpp at ${LLAMA_CPP_DIR}. Run scripts/llama to fetch it, or set LLAMA_CPP_DIR.")
endif()

execute_process(
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/scripts/llama-tree-hash ${LLAMA_CPP_DIR}
  OUTPUT_VARIABLE found_tree OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE hash_result ERROR_VARIABLE hash_error)
if(NOT hash_result EQUAL 0)
  message(FATAL_ERROR "Cannot hash the llama.cpp tree at ${LLAMA_CPP_DIR}: ${hash_error}")
endif()
if(NOT found_tree STREQUAL MESHNET_LLAMA_TREE)
  message(FATAL_ERROR
    "llama.cpp at ${LLAMA_CPP_DIR} is not the stock v0.5.0 tree: found tree ${found_tree}, need ${MESHNET_LLAMA_TREE}. "
    "Remove local changes there, or set LLAMA_CPP_DIR to an unpatched checkout of v0.5.0.")
endif()

set(BUILD_SHARED_LIBS OFF)
# Ours is the only test suite; these are cache entries so that llama.cpp's own option() calls see them.
foreach(on LLAMA_BUILD_COMMON LLAMA_BUILD_TOOLS LLAMA_BUILD_SERVER)
  set(${on} ON CACHE BOOL "" FORCE)
endforeach()
foreach(off LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES LLAMA_BUILD_APP LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_TOOLS_INSTALL
            LLAMA_TESTS_INSTALL MTMD_VIDEO LLAMA_FATAL_WARNINGS LLAMA_ALL_WARNINGS)
  set(${off} OFF CACHE BOOL "" FORCE)
endforeach()
add_subdirectory(${LLAMA_CPP_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL SYSTEM)
include(AlignedKernels)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# What our code sees of it: `llama_engine` (libllama and the common sampling parts) and `llama_text` (the server's context-free parts).
add_library(llama_engine INTERFACE)
target_link_libraries(llama_engine INTERFACE llama-common llama)
target_compile_definitions(llama_engine INTERFACE MESHNET_LLAMA_TREE="${MESHNET_LLAMA_TREE}")
add_library(llama_text INTERFACE)
target_link_libraries(llama_text INTERFACE server-context llama-common llama)
target_include_directories(llama_text SYSTEM INTERFACE ${LLAMA_CPP_DIR}/tools/server ${LLAMA_CPP_DIR}/tools/mtmd ${LLAMA_CPP_DIR})
add_library(llama_http INTERFACE)
target_link_libraries(llama_http INTERFACE cpp-httplib)
target_include_directories(llama_http SYSTEM INTERFACE ${LLAMA_CPP_DIR}/vendor)
add_library(llama_json INTERFACE)
target_include_directories(llama_json SYSTEM INTERFACE ${LLAMA_CPP_DIR}/vendor)
