# What a package's messages are generated into are dozens of small C++ files that read the same headers: a third of the
# time it takes to build them goes when a library's files are compiled as one, or read their headers from one that is
# compiled already. Given as CMAKE_PROJECT_INCLUDE; the libraries are the same.
function(compile_headers_once)
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    if(target MATCHES "__rosidl_typesupport_(cpp|fastrtps_c|fastrtps_cpp)$")
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    elseif(target MATCHES "__rosidl_typesupport_introspection_cpp$")  # specialises what other files of its instantiate
      target_precompile_headers(${target} PRIVATE
        <array> <cstddef> <map> <memory> <string> <vector>
        <rosidl_runtime_c/message_type_support_struct.h>
        <rosidl_runtime_cpp/bounded_vector.hpp>
        <rosidl_runtime_cpp/message_initialization.hpp>
        <rosidl_typesupport_cpp/message_type_support.hpp>
        <rosidl_typesupport_introspection_cpp/field_types.hpp>
        <rosidl_typesupport_introspection_cpp/message_introspection.hpp>)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL compile_headers_once)
