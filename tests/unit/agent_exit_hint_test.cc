// What the last lines of a dead worker speak of (L63, L56, D1): realistic ends of logs, and those
// that only look like them.
#include <gtest/gtest.h>

#include <string>

#include "launcher/agent/exit_hint.h"

namespace ddprun::agent {
namespace {

constexpr uint32_t kMasterPort = 41233;

struct Case {
  const char* name;
  v1::ExitHint hint;
  const char* text;
};

constexpr Case kCases[] = {
    {"GlooPeerClosed", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/srv/u/train.py\", line 31, in <module>\n"
     "    loss.backward()\n"
     "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed "
     "by peer [10.0.0.4]:31822\n"},
    {"GlooThroughTheLaunchersPrefix", v1::HINT_COMMUNICATION,
     "[rank1]: Traceback (most recent call last):\n"
     "[rank1]:   File \"/srv/u/train.py\", line 31, in <module>\n"
     "[rank1]:     dist.barrier()\n"
     "[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset "
     "by peer [127.0.0.1]:52154\n"},
    {"NcclRemoteError", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 9, in <module>\n"
     "    dist.all_reduce(x)\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 2501, in all_reduce\n"
     "    work = group.allreduce([tensor], opts)\n"
     "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3690, "
     "remote "
     "process exited or there was a network error, NCCL version 2.28.9\n"
     "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
     "prematurely.\n"
     "Last error:\n"
     "socketProgress: Connection closed by remote peer node2<40211>\n"
     "Exception raised from getNCCLComm at /pytorch/ProcessGroupNCCL.cpp:3690\n"
     "frame #0: c10::Error::Error(...)\n"},
    {"NcclSystemErrorOfASocket", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 9, in <module>\n"
     "    dist.barrier()\n"
     "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:93, unhandled system "
     "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
     "error.\n"
     "Last error:\n"
     "socketPollConnect: connect to 10.0.0.3<44211> returned Connection refused\n"},
    {"WatchdogTimeoutWithoutTraceback", v1::HINT_COMMUNICATION,
     "step 100 loss 2.1\n"
     "[rank0]:[E1130 10:00:00 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective "
     "operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran "
     "for 600001 milliseconds before timing out.\n"
     "[rank0]:[E1130 10:00:01 ProcessGroupNCCL.cpp:697] Some NCCL operations have failed or timed "
     "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on "
     "corrupted/incomplete data.\n"
     "terminate called after throwing an instance of 'c10::DistBackendError'\n"
     "  what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: [Rank "
     "0] "
     "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42)\n"},
    {"OwnProgramWithNccl", v1::HINT_COMMUNICATION,
     "epoch 3\nNCCL failure trainer.cpp:88: NCCL communicator was aborted\n"},
    {"StoreGone", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 4800, in barrier\n"
     "    work.wait()\n"
     "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely "
     "closed. Did the remote server shutdown or crash?\n"},
    {"StoreTimeout", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/rendezvous.py\", line 198, in _create_c10d_store\n"
     "    tcp_store = TCPStore(hostname, port, world_size, False, timeout)\n"
     "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
     "trying to connect to (127.0.0.1, 41233).\n"},
    {"StoreMissesClients", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/rendezvous.py\", line 198, in _create_c10d_store\n"
     "    return TCPStore(\n"
     "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 "
     "clients "
     "joined.\n"},
    {"PlainResetInsideTorchDistributed", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 10, in broadcast\n"
     "    work.wait()\n"
     "RuntimeError: Connection reset by peer\n"},
    {"MonitoredBarrier", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 10, in monitored_barrier\n"
     "    return group_to_use.monitored_barrier(timeout, wait_all_ranks)\n"
     "RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms\n"},
    {"HandledInAChain", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 3, in step\n"
     "    loss.backward()\n"
     "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:5] Broken pipe\n"
     "\n"
     "The above exception was the direct cause of the following exception:\n"
     "\n"
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 9, in <module>\n"
     "    raise TrainingError(\"step failed\") from e\n"
     "TrainingError: step failed\n"},
    {"Horovod", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/horovod/torch/mpi_ops.py\", line 1200, in synchronize\n"
     "    mpi_lib.horovod_torch_wait_and_clear(handle)\n"
     "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused "
     "by an exception on one of the ranks or an attempt to allreduce\n"},
    {"Paddle", v1::HINT_COMMUNICATION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/paddle/distributed/parallel.py\", line 1100, in init_parallel_env\n"
     "    default_store = core.TCPStore(\n"
     "RuntimeError: (Unavailable) TCP receive error. Details: Connection reset by peer. [Hint: at "
     "/paddle/phi/core/distributed/store/tcp_utils.cc:210]\n"},

    // ---- the port of rank 0
    {"TcpStorePortTaken", v1::HINT_PORT_COLLISION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/rendezvous.py\", line 198, in _create_c10d_store\n"
     "    return TCPStore(\n"
     "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
     "network address. port: 41233, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
     "already in use\n"},
    {"OldTorchPortTaken", v1::HINT_PORT_COLLISION,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/rendezvous.py\", line 255, in _env_rendezvous_handler\n"
     "    store = TCPStore(master_addr, master_port, world_size, start_daemon, timeout)\n"
     "RuntimeError: Address already in use\n"},
    {"PythonSocketOnMasterPort", v1::HINT_PORT_COLLISION,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 4, in <module>\n"
     "    asyncio.run(main())\n"
     "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 41233): address "
     "already in use\n"},
    {"ProgramNamesThePort", v1::HINT_PORT_COLLISION,
     "bind to 0.0.0.0:41233 failed: Address already in use\n"},

    // ---- an error of its own
    {"OtherStorePort", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/rendezvous.py\", line 198, in _create_c10d_store\n"
     "    return TCPStore(\n"
     "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
     "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
     "already in use\n"},
    {"AnotherServersPort", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"/usr/lib/python3.11/socketserver.py\", line 456, in __init__\n"
     "    self.server_bind()\n"
     "OSError: [Errno 98] Address already in use\n"},
    {"DataServerReset", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"/venv/requests/adapters.py\", line 501, in send\n"
     "    raise ConnectionError(err, request=request)\n"
     "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, "
     "'Connection reset by peer'))\n"},
    {"DatabaseReset", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"data.py\", line 4, in rows\n"
     "    cursor.execute(query)\n"
     "ConnectionResetError: [Errno 104] Connection reset by peer\n"},
    {"OwnErrorThenTeardownOfNccl", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 40, in <module>\n"
     "    raise ValueError('label 12 is out of range')\n"
     "ValueError: label 12 is out of range\n"
     "[rank2]:[W] NCCL WARN Net : Connection closed by remote peer node1<3312>\n"
     "terminate called after throwing an instance of 'c10::DistBackendError'\n"
     "  what():  NCCL communicator was aborted on rank 2.\n"},
    {"OwnErrorThenBarrierInFinally", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 40, in step\n"
     "    raise KeyError('x')\n"
     "KeyError: 'x'\n"
     "\n"
     "During handling of the above exception, another exception occurred:\n"
     "\n"
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 1, in barrier\n"
     "    work.wait()\n"
     "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n"},
    {"ChainWhoseBeginningIsCutOff", v1::EXIT_HINT_UNSPECIFIED,
     "During handling of the above exception, another exception occurred:\n"
     "\n"
     "Traceback (most recent call last):\n"
     "  File \"/venv/torch/distributed/distributed_c10d.py\", line 1, in barrier\n"
     "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n"},
    {"CudaErrorFoundByTheWatchdog", v1::EXIT_HINT_UNSPECIFIED,
     "terminate called after throwing an instance of 'c10::DistBackendError'\n"
     "  what():  [Rank 0] Process group watchdog thread terminated with exception: CUDA error: an "
     "illegal memory access was encountered\n"
     "Some NCCL operations have failed or timed out.\n"},
    {"NcclOutOfSharedMemory", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 9, in <module>\n"
     "    dist.barrier()\n"
     "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:93, unhandled system "
     "error, NCCL version 2.28.9\n"
     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
     "Last error:\n"
     "Error while creating shared memory segment /dev/shm/nccl-x9 (size 33030528)\n"},
    {"OutOfMemory", v1::EXIT_HINT_UNSPECIFIED,
     "Traceback (most recent call last):\n"
     "  File \"train.py\", line 9, in <module>\n"
     "    y = model(x)\n"
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"},
    {"MentionsConnectionInItsOutput", v1::EXIT_HINT_UNSPECIFIED,
     "connecting to gloo/ peers\nwarning: connection slow\nfatal: bad option --lr\n"},
    {"Nothing", v1::EXIT_HINT_UNSPECIFIED, ""},
};

TEST(ExitHintTest, EndsOfLogs) {
  for (const Case& c : kCases) {
    EXPECT_EQ(HintOf(c.text, {kMasterPort, kMasterPort + 1}), c.hint) << c.name;
  }
}

TEST(ExitHintTest, OnlyTheEndCounts) {
  std::string text = "NCCL communicator was aborted\n";
  for (int i = 0; i < 100; ++i) text += "step\n";
  EXPECT_EQ(HintOf(text, {}), v1::EXIT_HINT_UNSPECIFIED);
  text.assign(4 * kHintBytesMax, '\xFF');
  EXPECT_EQ(HintOf(text, {}), v1::EXIT_HINT_UNSPECIFIED);
  EXPECT_EQ(HintOf(text + "\nncclRemoteError\n", {}), v1::HINT_COMMUNICATION);
}

}  // namespace
}  // namespace ddprun::agent
