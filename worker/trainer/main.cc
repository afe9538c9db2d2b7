// ddp-worker: the built-in trainer, one process a rank. Started by ddprun; by hand (`ddp-worker
// train.cfg`) it trains as rank 0 of 1; `ddp-worker --version` shows LibTorch's version, and thus
// that all libraries are found; `--export-torchscript` writes a trained module; `--check N` and
// `--plan N` answer questions (plan_modes.h). Exit
// code 0 when the work is done, 1 after an error that was reported.
#include <malloc.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/mapped_ranges.h"
#include "worker/trainer/exceptions.h"
#include "worker/trainer/export_torchscript.h"
#include "worker/trainer/plan_modes.h"
#include "worker/trainer/session.h"
#include "worker/trainer/trainer.h"

namespace ddprun {
namespace {

constexpr int kThreadsMax = 1024;

void SetThreads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int threads = text == nullptr ? 1 : std::atoi(text);
  at::set_num_threads(threads >= 1 && threads <= kThreadsMax ? threads : 1);
}

// Activations of megabytes are allocated and freed in every step. By default each comes fresh from
// the kernel, zeroed page by page: a quarter of the time of a step of the reference model. Kept in
// the heap, the same pages are used again.
void KeepFreedMemory() {
  constexpr int kMmapThresholdMax = 32 << 20;  // glibc takes no more
  constexpr int kTrimThreshold = 1 << 30;  // free memory at the top of the heap that is given back
  constexpr int kTopPad = 16 << 20;        // by which the heap grows
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdMax);
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  mallopt(M_TOP_PAD, kTopPad);
}

// A resumed run must end with the weights of an undisturbed one: no convolutions whose sums depend
// on timing, and none chosen by timing. The other kernels of GPUs that add by atomics are replaced
// only by train.deterministic: some of their replacements are slow, and some do not exist (then the
// operation is named in an error).
void SetDeterminism(bool all) {
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  if (!all) return;
  // cuBLAS reads it when its first handle is made; the user's own choice stays.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Filling every new tensor would only make errors of ours repeatable, at a price.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

absl::Status TrainAsWorker(ddprun_handle* client, const char* config_path, Session& session) {
  session.client = client;
  session.rank = ddprun_rank(client);
  session.world_size = ddprun_world_size(client);
  absl::StatusOr<TrainConfig> config = ReadWorkerConfig(config_path);
  if (!config.ok()) return config.status();
  session.config = *std::move(config);
  SetDeterminism(session.config.train_deterministic);
  absl::StatusOr<at::Device> device = ChooseDevice(ddprun_local_rank(client));
  if (!device.ok()) return device.status();
  session.device = *device;
  // Everything that LibTorch does for this rank happens on its own GPU (TR16).
  const c10::OptionalDeviceGuard guard(session.device.is_cuda() ? std::optional(session.device)
                                                                : std::nullopt);
  session.exchange = MakeExchange(client);
  SetThreads();
  KeepFreedMemory();
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(&session);
  if (!trainer.ok()) return trainer.status();
  return trainer->release()->Run();
}

// `ddp-worker --export-torchscript CHECKPOINT_DIR OUT [MODULE]`, without a job.
int RunExport(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments.size() > 3) {
    fputs("ddp-worker: usage: --export-torchscript CHECKPOINT_DIR OUT.pt [MODULE.pt]\n", stderr);
    return 2;
  }
  const absl::Status status = CatchingAll(Session(), [&] {
    return ExportTorchScript(arguments[0], arguments[1],
                             arguments.size() > 2 ? arguments[2] : std::string());
  });
  if (status.ok()) return 0;
  fprintf(stderr, "ddp-worker: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  // Standard output is a pipe here; a line must be seen when it is written.
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    puts(TORCH_VERSION);
    return 0;
  }
  if (argc >= 2 && std::string_view(argv[1]) == "--export-torchscript") {
    return RunExport({argv + 2, argv + argc});
  }
  TellOfUnreadablePages();
  const std::string_view mode = argc == 3 ? argv[1] : "";
  if (mode == "--check" || mode == "--check-resumed" || mode == "--plan") {
    SetThreads();
    return RunPlanMode(argv[1], argv[2]);
  }
  ddprun_handle* client = nullptr;
  if (ddprun_init(&client) != 0) {
    fprintf(stderr, "ddp-worker: %s\n", ddprun_error(nullptr));
    return 1;
  }
  // Session and trainer are never destroyed: the process ends with _exit, and destructors would
  // wait for peers that are gone.
  Session& session = *new Session();
  const absl::Status status = CatchingAll(
      session, [&] { return TrainAsWorker(client, argc > 1 ? argv[1] : nullptr, session); });
  if (status.ok()) {
    ddprun_finish(client);
    return 0;
  }
  const std::string message(status.message());
  fprintf(stderr, "ddp-worker: rank %d: %s\n", ddprun_rank(client), message.c_str());
  ddprun_fail(client, FailureKind(status), message.c_str());
  return 1;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  // Batch systems may signal every process of a job; a checkpoint is asked for by ddprun itself.
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
  const int code = ddprun::Main(argc, argv);
  fflush(stdout);
  fflush(stderr);
  _exit(code);  // destructors of LibTorch and of communicators may hang or crash at exit (TR54)
}
