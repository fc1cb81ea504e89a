# Messages are generated into dozens of small C++ files that all read the same large headers. Compiling the files of a
# library as one, or reading the headers once for all of them, takes a third of the time; the libraries are the same.
# Given to a package's build as CMAKE_PROJECT_INCLUDE, so that its own CMakeLists.txt stays as it is.
function(read_headers_once)
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    if(target MATCHES "__rosidl_typesupport_(cpp|fastrtps_c|fastrtps_cpp)$")
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    elseif(target MATCHES "__rosidl_typesupport_introspection_cpp$")
      # its files cannot be one: each specialises templates that others instantiate
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
cmake_language(DEFER CALL read_headers_once)
