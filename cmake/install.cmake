# What `cmake --install` puts where: headers, both libraries, and the files that let CMake and pkg-config users find them.
include(CMakePackageConfigHelpers)
set(CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Tenon)

install(DIRECTORY include/tenon ${GEN_DIR}/tenon DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS tenon EXPORT TenonTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT TenonTargets NAMESPACE Tenon:: DESTINATION ${CONFIG_DIR})
if(STATIC_LIB)
  install(FILES ${STATIC_LIB} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

configure_package_config_file(cmake/TenonConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/TenonConfig.cmake
  INSTALL_DESTINATION ${CONFIG_DIR} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/TenonConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TenonConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TenonConfigVersion.cmake DESTINATION ${CONFIG_DIR})

# pkg-config: paths relative to the file itself, so that a staged or moved tree works.
file(RELATIVE_PATH PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH INCLUDE_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/tenon.pc.in ${CMAKE_CURRENT_BINARY_DIR}/tenon.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tenon.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
