// Prepares the training pictures of a folder as a job would (image_folder, Loader), and prints one
// line: pictures, seconds, processor seconds of the whole process, of EPOCHS epochs after a first
// that is not counted.
//   image-rate DIR THREADS BATCH_SIZE EPOCHS
#include <sys/resource.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "worker/data/loader.h"

namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

// Pictures of one epoch.
int64_t RunEpoch(ddprun::Loader& loader, int64_t epoch, int64_t samples) {
  std::vector<int64_t> indices(static_cast<size_t>(samples));
  std::iota(indices.begin(), indices.end(), 0);
  loader.Start(epoch, std::move(indices));
  int64_t pictures = 0;
  while (true) {
    const absl::StatusOr<ddprun::Batch> batch = loader.Next();
    if (!batch.ok()) {
      fprintf(stderr, "%s\n", batch.status().ToString().c_str());
      exit(1);
    }
    if (!batch->inputs.defined()) return pictures;
    pictures += batch->inputs.size(0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ddprun;
  if (argc != 5) {
    fprintf(stderr, "usage: %s DIR THREADS BATCH_SIZE EPOCHS\n", argv[0]);
    return 2;
  }
  TrainConfig config;
  config.data_kind = "image_folder";
  config.data_dir = argv[1];
  config.train_evaluate = false;
  const auto dataset = OpenDataset(config, DataSplit::kTrain, "");
  if (!dataset.ok()) {
    fprintf(stderr, "%s\n", dataset.status().ToString().c_str());
    return 2;
  }
  Loader loader(*dataset, atoi(argv[3]), atoi(argv[2]));
  RunEpoch(loader, 0, (*dataset)->size());
  const double processor = ProcessorSeconds();
  const auto begin = std::chrono::steady_clock::now();
  int64_t pictures = 0;
  for (int epoch = 1; epoch <= atoi(argv[4]); ++epoch) {
    pictures += RunEpoch(loader, epoch, (*dataset)->size());
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  printf("%" PRId64 " %.6f %.6f\n", pictures, wall.count(), ProcessorSeconds() - processor);
  return 0;
}
