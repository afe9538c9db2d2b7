# libddprun (worker/client) and the text of its packets (common/wire).
ddprun_test(NAME wire_test LABEL unit SOURCES unit/wire_test.cc LIBS ddprun_wire)
foreach(subject exchange progress edge checkpoint)
  ddprun_test(NAME client_${subject}_test LABEL unit TIMEOUT 120
    SOURCES unit/client_${subject}_test.cc unit/client_keeper.cc LIBS ddprun_client)
endforeach()
# The file operations of a checkpoint are recorded, and made to fail.
target_link_options(client_checkpoint_test PRIVATE
  -Wl,--wrap=open -Wl,--wrap=write -Wl,--wrap=fsync -Wl,--wrap=close -Wl,--wrap=rename -Wl,--wrap=unlink)

# Real processes: a worker that is aborted, loses its keeper, forks; the library as a file; the example.
add_executable(client_child unit/client_child.cc)
set_target_properties(client_child PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(client_child PRIVATE ddprun_shared ddprun_warnings)
foreach(subject process library example)
  ddprun_test(NAME client_${subject}_test LABEL process
    SOURCES unit/client_${subject}_test.cc unit/client_keeper.cc LIBS ddprun_client)
  add_dependencies(client_${subject}_test client_child ddprun_shared c_trainer)
endforeach()
