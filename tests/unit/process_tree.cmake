ddprun_test(NAME process_tree_test LABEL unit SOURCES unit/process_tree_test.cc LIBS ddprun_base)
