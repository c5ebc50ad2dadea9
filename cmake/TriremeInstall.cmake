# Files of `make install` and of packages, in GNU's folders: bin/trireme, its manual page, completion for
# bash, a modulefile, documents, and job scripts where there are any.
include(GNUInstallDirs)
if(NOT TRIREME_PACKAGE)  # libraries outside the system's folders are found where they were linked
  set_target_properties(trireme PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()
install(TARGETS trireme RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# The manual and the completion are generated from the program's command-line definition.
add_executable(write_manual packaging/write_manual.cpp)
target_link_libraries(write_manual PRIVATE trireme_cli trireme_options)
if(TRIREME_SANITIZE)
  target_sources(write_manual PRIVATE $<TARGET_OBJECTS:trireme_keep_modules>)
endif()
set(trireme_manual "${CMAKE_CURRENT_BINARY_DIR}/packaging/trireme.1")
set(trireme_completion "${CMAKE_CURRENT_BINARY_DIR}/packaging/trireme")
file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/packaging")
add_custom_command(
  OUTPUT "${trireme_manual}" "${trireme_completion}"
  COMMAND write_manual manual > "${trireme_manual}"
  COMMAND write_manual completion > "${trireme_completion}"
  DEPENDS write_manual VERBATIM)
set(trireme_manuals "${trireme_manual}" "${trireme_completion}")
if(TRIREME_PACKAGE)
  set(trireme_changelog "${CMAKE_CURRENT_BINARY_DIR}/packaging/changelog.gz")
  add_custom_command(
    OUTPUT "${trireme_manual}.gz" "${trireme_changelog}"
    COMMAND gzip -9nc "${trireme_manual}" > "${trireme_manual}.gz"
    COMMAND gzip -9nc "${PROJECT_SOURCE_DIR}/packaging/changelog" > "${trireme_changelog}"
    DEPENDS "${trireme_manual}" packaging/changelog VERBATIM)
  list(APPEND trireme_manuals "${trireme_manual}.gz" "${trireme_changelog}")
  install(FILES "${trireme_manual}.gz" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES "${trireme_changelog}" DESTINATION ${CMAKE_INSTALL_DOCDIR})
else()
  install(FILES "${trireme_manual}" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
add_custom_target(trireme_manual ALL DEPENDS ${trireme_manuals})
install(FILES "${trireme_completion}" DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)

install(FILES README.md ARCHITECTURE.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TRIREME_PACKAGE)  # Debian has the license's text and forbids copies
  install(FILES packaging/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
else()
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
file(GLOB trireme_documents CONFIGURE_DEPENDS docs/*.md)
install(FILES ${trireme_documents} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY docs/schemas DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
foreach(folder jobs data)
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}")
    install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme USE_SOURCE_PERMISSIONS
            PATTERN __pycache__ EXCLUDE)
  endif()
endforeach()

# The prefix is known when files are installed, not before.
set(trireme_modulefiles "${CMAKE_INSTALL_DATADIR}/modulefiles/trireme")
install(CODE "
  set(TRIREME_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
  set(TRIREME_VERSION \"${PROJECT_VERSION}\")
  set(TRIREME_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
  set(TRIREME_MANDIR \"${CMAKE_INSTALL_MANDIR}\")
  set(TRIREME_DATADIR \"${CMAKE_INSTALL_DATADIR}\")
  configure_file(\"${PROJECT_SOURCE_DIR}/packaging/modulefiles/trireme.in\"
                 \"${CMAKE_CURRENT_BINARY_DIR}/packaging/${PROJECT_VERSION}\" @ONLY)")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/packaging/${PROJECT_VERSION}" DESTINATION ${trireme_modulefiles})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME trireme)
set(TRIREME_CONTACT "The Trireme developers <developers@trireme.example.org>" CACHE STRING
    "Who answers for packages: NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT "${TRIREME_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "transformer training under MPI")
set(CPACK_PACKAGE_DESCRIPTION
"Trains GPT-2 and Llama models on anything from a laptop to a supercomputer:
one program that mpirun or srun starts on every rank, with data, tensor,
sequence and pipeline parallelism and sharded state, whose results do not
depend on the layout. It plans memory before a run and leaves a record of it.")
set(CPACK_PACKAGE_VENDOR "Trireme")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Needed by the job scripts, scaling studies and plots of reports.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, python3, gnuplot-nox | gnuplot")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
