# Devices and processors: who gets what, on made-up machines.
if(TARGET ddprun_placement)
  foreach(subject machine visible binding plan memory)
    ddprun_test(NAME placement_${subject}_test LABEL unit SOURCES unit/placement_${subject}_test.cc unit/cli_folder.cc
                LIBS ddprun_placement)
    target_link_options(placement_${subject}_test PRIVATE -no-pie)
  endforeach()
endif()
