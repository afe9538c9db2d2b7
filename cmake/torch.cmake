# LibTorch from the torch wheel, as imported targets of our own (find_package(Torch) insists on a CUDA toolkit).
#   ddprun_gloo        Debian's libgloo: collectives on CPUs
#   ddprun_torch_cpu   tensors and autograd; brings libgloo along in front of itself, see below
#   ddprun_cuda_libs   NCCL and the CUDA runtime, where their headers are (DDPRUN_HAVE_CUDA)
#   ddprun_torch_cuda  LibTorch on GPUs, for libddp_worker_cuda.so alone
#   ddprun_use_torch(target)  links ddprun_torch_cpu and shares one precompiled torch/torch.h
#
# libtorch_cpu.so exports a newer Gloo of its own, whose headers the wheel does not hold. Debian's must come first in the
# search order of the loader, so that each gloo symbol of the process binds to it; else the program dies of the mixture.
# CMake orders libraries as it likes, but puts link options before everything else: so libgloo is one.

set(ddprun_wheel_fix "run ./scripts/build.sh, which installs it, or give -DDDPRUN_TORCH_DIR=…/site-packages/torch")

# Where the wheel is: given, in .deps/venv, or python3's.
function(ddprun_find_torch result)
  if(DDPRUN_TORCH_DIR)
    set(${result} ${DDPRUN_TORCH_DIR} PARENT_SCOPE)
    return()
  endif()
  file(GLOB found ${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/torch)
  if(NOT found)
    execute_process(COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
                    OUTPUT_VARIABLE found ERROR_QUIET)
  endif()
  if(NOT found)
    message(FATAL_ERROR "ddp-worker needs the torch wheel ${PIN_TORCH_VERSION}; it is neither in .deps/venv nor known to "
                        "python3: ${ddprun_wheel_fix}; or leave the worker out with -DDDPRUN_WORKER=OFF")
  endif()
  list(GET found 0 found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

ddprun_find_torch(DDPRUN_TORCH)
foreach(part version.py include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS ${DDPRUN_TORCH}/${part})
    message(FATAL_ERROR "${DDPRUN_TORCH} is no complete torch wheel: ${part} is missing: ${ddprun_wheel_fix}")
  endif()
endforeach()
file(STRINGS ${DDPRUN_TORCH}/version.py version_line REGEX "^__version__ *= *")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" DDPRUN_TORCH_VERSION "${version_line}")
if(NOT DDPRUN_TORCH_VERSION STREQUAL PIN_TORCH_VERSION)
  message(FATAL_ERROR "the torch wheel in ${DDPRUN_TORCH} has version '${DDPRUN_TORCH_VERSION}', ddprun is built and "
                      "tested with ${PIN_TORCH_VERSION} (versions.env): ${ddprun_wheel_fix}")
endif()
message(STATUS "torch wheel ${DDPRUN_TORCH_VERSION}: ${DDPRUN_TORCH}")

find_library(DDPRUN_GLOO_LIBRARY gloo)
find_path(DDPRUN_GLOO_INCLUDE gloo/transport/tcp/pair.h)
if(NOT DDPRUN_GLOO_LIBRARY OR NOT DDPRUN_GLOO_INCLUDE)
  message(FATAL_ERROR "ddp-worker needs Debian's libgloo-dev: run ./scripts/build.sh, which installs it")
endif()
add_library(ddprun_gloo SHARED IMPORTED GLOBAL)
set_target_properties(ddprun_gloo PROPERTIES IMPORTED_LOCATION ${DDPRUN_GLOO_LIBRARY})
target_include_directories(ddprun_gloo SYSTEM INTERFACE ${DDPRUN_GLOO_INCLUDE})

# The wheel's libraries find each other by their own rpath; what they need of other wheels is not our linker's business.
add_library(ddprun_torch_cpu INTERFACE)
target_include_directories(ddprun_torch_cpu SYSTEM INTERFACE ${DDPRUN_TORCH}/include
                           ${DDPRUN_TORCH}/include/torch/csrc/api/include)
target_link_libraries(ddprun_torch_cpu INTERFACE ${DDPRUN_TORCH}/lib/libtorch_cpu.so ${DDPRUN_TORCH}/lib/libc10.so)
target_link_options(ddprun_torch_cpu INTERFACE
  "SHELL:-Wl,--push-state,--no-as-needed ${DDPRUN_GLOO_LIBRARY} -Wl,--pop-state"
  -Wl,--allow-shlib-undefined -Wl,-rpath,${DDPRUN_TORCH}/lib)

# NCCL and CUDA: headers of the wheels, else of a toolkit. The wheels' libraries come first, since LibTorch loads those
# and two NCCLs in one process do not work.
get_filename_component(DDPRUN_NVIDIA ${DDPRUN_TORCH}/../nvidia ABSOLUTE)
set(DDPRUN_HAVE_CUDA OFF)
if(NOT DDPRUN_CUDA STREQUAL "OFF")
  find_path(DDPRUN_CUDA_INCLUDE cuda_runtime.h HINTS ${DDPRUN_NVIDIA}/cu13/include PATHS /usr/local/cuda/include)
  find_path(DDPRUN_NCCL_INCLUDE nccl.h HINTS ${DDPRUN_NVIDIA}/nccl/include PATHS /usr/local/cuda/include)
  find_library(DDPRUN_CUDART_LIBRARY NAMES libcudart.so.13 HINTS ${DDPRUN_NVIDIA}/cu13/lib PATHS /usr/local/cuda/lib64)
  find_library(DDPRUN_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${DDPRUN_NVIDIA}/nccl/lib)
  if(DDPRUN_CUDA_INCLUDE AND DDPRUN_NCCL_INCLUDE AND DDPRUN_CUDART_LIBRARY AND DDPRUN_NCCL_LIBRARY
     AND EXISTS ${DDPRUN_TORCH}/lib/libtorch_cuda.so)
    set(DDPRUN_HAVE_CUDA ON)
  elseif(DDPRUN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DDPRUN_CUDA=ON, but not all of cuda_runtime.h, nccl.h, libcudart.so.13, libnccl.so.2 and "
                        "libtorch_cuda.so were found under ${DDPRUN_NVIDIA} and /usr/local/cuda: install the whole wheel "
                        "set (./scripts/build.sh --tests does) or use -DDDPRUN_CUDA=AUTO")
  endif()
endif()
message(STATUS "libddp_worker_cuda.so: ${DDPRUN_HAVE_CUDA}")

if(DDPRUN_HAVE_CUDA)
  set(ddprun_cuda_rpath)
  foreach(library IN ITEMS ${DDPRUN_CUDART_LIBRARY} ${DDPRUN_NCCL_LIBRARY})
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND ddprun_cuda_rpath -Wl,-rpath,${folder})
  endforeach()
  add_library(ddprun_cuda_libs INTERFACE)
  target_include_directories(ddprun_cuda_libs SYSTEM INTERFACE ${DDPRUN_NCCL_INCLUDE} ${DDPRUN_CUDA_INCLUDE})
  target_link_libraries(ddprun_cuda_libs INTERFACE ${DDPRUN_NCCL_LIBRARY} ${DDPRUN_CUDART_LIBRARY})
  target_link_options(ddprun_cuda_libs INTERFACE ${ddprun_cuda_rpath})
  add_library(ddprun_torch_cuda INTERFACE)
  target_include_directories(ddprun_torch_cuda SYSTEM INTERFACE ${DDPRUN_NVIDIA}/cudnn/include)
  # Loading libtorch_cuda is what registers the CUDA kernels: the linker must keep it although no symbol is used.
  target_link_libraries(ddprun_torch_cuda INTERFACE ddprun_torch_cpu ddprun_cuda_libs -Wl,--push-state,--no-as-needed
    ${DDPRUN_TORCH}/lib/libtorch_cuda.so ${DDPRUN_TORCH}/lib/libc10_cuda.so -Wl,--pop-state)
endif()

# One precompiled torch/torch.h (20 s) for every target that uses LibTorch; a file then takes 5–10 s instead of 25.
# GCC takes it only where the code-generation flags agree, so executables are compiled as position-independent code too.
file(WRITE ${CMAKE_BINARY_DIR}/torch_pch.cc "// The precompiled header's owner.\n")
add_library(ddprun_torch_pch OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/torch_pch.cc)
target_link_libraries(ddprun_torch_pch PRIVATE ddprun_torch_cpu ddprun_warnings)
target_precompile_headers(ddprun_torch_pch PRIVATE <torch/torch.h>)

function(ddprun_use_torch target)
  target_link_libraries(${target} PUBLIC ddprun_torch_cpu)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM ddprun_torch_pch)
endfunction()
