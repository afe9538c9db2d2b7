# Short runs of the libFuzzer targets (tests/fuzz/CMakeLists.txt), where clang and its runtime are installed. They are
# built by the first of these tests, by clang, in build/fuzz.
find_program(DDPRUN_CLANGXX clang++-19)
find_program(DDPRUN_CLANG clang-19)
file(GLOB fuzzer_runtime /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a)
if(DDPRUN_CLANGXX AND DDPRUN_CLANG AND fuzzer_runtime)
  set(fuzz_build ${CMAKE_BINARY_DIR}/fuzz)
  add_test(NAME fuzz_build COMMAND sh -c "'${CMAKE_COMMAND}' -S '${CMAKE_SOURCE_DIR}' -B '${fuzz_build}' -G Ninja \
-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER='${DDPRUN_CLANG}' -DCMAKE_CXX_COMPILER='${DDPRUN_CLANGXX}' \
-DDDPRUN_FUZZ=ON && '${CMAKE_COMMAND}' --build '${fuzz_build}' --target fuzzers")
  set_tests_properties(fuzz_build PROPERTIES LABELS unit TIMEOUT 600 FIXTURES_SETUP fuzzers)
  file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
  foreach(source IN LISTS fuzzers)
    get_filename_component(fuzzer ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" subject ${fuzzer})
    # New inputs go to a folder that begins empty each time; a failing one stays beside it.
    set(corpus ${fuzz_build}/corpus/${subject})
    add_test(NAME ${fuzzer} COMMAND sh -c "rm -rf '${corpus}' && mkdir -p '${corpus}' && exec '${fuzz_build}/bin/${fuzzer}' \
-runs=20000 -max_total_time=5 -seed=1 -timeout=10 -artifact_prefix='${fuzz_build}/' '${corpus}' \
'${CMAKE_SOURCE_DIR}/tests/fuzz/seeds/${subject}'")
    set_tests_properties(${fuzzer} PROPERTIES LABELS unit TIMEOUT 60 FIXTURES_REQUIRED fuzzers)
  endforeach()
endif()
