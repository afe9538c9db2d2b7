#include "tests/unit/trainer_harness.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/client_keeper.h"
#include "worker/trainer/trainer.h"

namespace ddprun {
namespace {

// Answers the worker until it has finished or its end is closed. Runs in its own thread.
class CommittingKeeper {
 public:
  CommittingKeeper(FakeKeeper* keeper, const TrainOptions& options, TrainOutcome* outcome)
      : keeper_(*keeper), options_(options), outcome_(*outcome) {}

  void Run() {
    for (Packet packet = Next(); !packet.empty(); packet = Next()) {
      const std::string type = packet["TYPE"];
      if (type == "Finished") return;
      if (type == "Result") outcome_.results.insert(packet.begin(), packet.end());
      if (type == "CheckpointSkipped") outcome_.skipped.push_back(std::stoll(packet["STEP"]));
      if (type == "ShardsWritten") Settle(std::stoll(packet["STEP"]));
      if (type == "CheckpointFailed") Drop(packet["STEP"]);
      if (type == "Progress" && options_.stop_after >= 0 &&
          std::stoll(packet["STEP"]) >= options_.stop_after && !asked_) {
        asked_ = true;
        keeper_.Send({{"TYPE", "EdgeRequest"}, {"ID", "1"}, {"PURPOSE", "stop"}});
      }
      if (type == "Edge") {
        keeper_.Send(
            {{"TYPE", "CheckpointAt"}, {"ID", "1"}, {"STEP", packet["STEP"]}, {"PURPOSE", "stop"}});
      }
    }
  }

 private:
  // A worker on a busy machine may be silent for a while.
  Packet Next() { return keeper_.Receive(/*timeout_ms=*/120000); }

  void Settle(int64_t step) {
    const std::string dir = options_.run_dir + "/checkpoints";
    if (!options_.commit) return Drop(absl::StrCat(step));
    std::filesystem::rename(absl::StrCat(dir, "/.staging/g1-step-", step),
                            absl::StrCat(dir, "/step-", step));
    outcome_.committed.push_back(step);
    keeper_.Send({{"TYPE", "CheckpointCommitted"}, {"STEP", absl::StrCat(step)}});
  }

  void Drop(const std::string& step) {
    keeper_.Send({{"TYPE", "CheckpointDropped"}, {"STEP", step}, {"REASON", "a test"}});
  }

  FakeKeeper& keeper_;
  const TrainOptions& options_;
  TrainOutcome& outcome_;
  bool asked_ = false;
};

void WriteIdx(const std::string& path, const std::vector<uint32_t>& shape,
              const std::vector<uint8_t>& data) {
  std::string out = {0, 0, 8, static_cast<char>(shape.size())};
  for (uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(extent >> shift));
  }
  out.append(data.begin(), data.end());
  std::ofstream(path, std::ios::binary) << out;
}

}  // namespace

TrainOutcome Train(const TrainOptions& options) {
  at::set_num_threads(
      1);  // as the worker does; threads that spin for each other are slow on a busy machine
  TrainOutcome outcome;
  FakeKeeper keeper;
  const std::string resume_from =
      options.resume_step < 0
          ? ""
          : absl::StrCat(options.run_dir, "/checkpoints/step-", options.resume_step);
  for (const int64_t step : options.unwritable) {
    const std::string staging = options.run_dir + "/checkpoints/.staging";
    std::filesystem::create_directories(staging);
    std::ofstream(absl::StrCat(staging, "/g1-step-", step)) << "in the folder's place";
  }
  const std::string state_dir = options.run_dir + "/state";
  ddprun_settings settings = keeper.Settings();
  settings.socket_fd = fcntl(keeper.worker_fd(), F_DUPFD_CLOEXEC, 0);
  settings.rank = settings.local_rank = 0;
  settings.world_size = settings.local_world_size = 1;
  settings.generation = 1;
  settings.run_dir = options.run_dir.c_str();
  settings.state_dir = state_dir.c_str();
  settings.resume_from = resume_from.c_str();
  settings.resume_step = std::max<int64_t>(0, options.resume_step);
  ddprun_handle* client = nullptr;
  if (ddprun_open(&settings, &client) != 0) {
    outcome.status = absl::InternalError(ddprun_error(nullptr));
    return outcome;
  }
  keeper.ForgetWorkerEnd();
  CommittingKeeper committing(&keeper, options, &outcome);
  std::thread thread([&] { committing.Run(); });
  {
    Session session;
    session.client = client;
    session.config = options.config;
    session.exchange = MakeExchange(client);
    auto trainer = Trainer::Create(&session);
    outcome.status = trainer.ok() ? (*trainer)->Run() : trainer.status();
  }
  ddprun_finish(client);
  thread.join();
  ddprun_close(client);
  return outcome;
}

TrainConfig WriteRandomData(const std::string& dir, uint32_t train_samples, uint32_t test_samples) {
  std::filesystem::create_directories(dir);
  std::mt19937 random(7);
  for (const auto& [prefix, samples] :
       {std::pair("train", train_samples), std::pair("t10k", test_samples)}) {
    std::vector<uint8_t> pixels(samples * 784);
    for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(random());
    std::vector<uint8_t> labels(samples);
    for (uint8_t& label : labels) label = static_cast<uint8_t>(random() % 10);
    WriteIdx(absl::StrCat(dir, "/", prefix, "-images-idx3-ubyte"), {samples, 28, 28}, pixels);
    WriteIdx(absl::StrCat(dir, "/", prefix, "-labels-idx1-ubyte"), {samples}, labels);
  }
  TrainConfig config;
  config.model_name = "simple_cnn";
  config.data_kind = "idx";
  config.data_dir = dir;
  config.data_batch_size = 8;
  config.data_workers = 2;
  config.train_epochs = 2;
  config.checkpoint_every_steps = 3;
  config.log_every_steps = 1000;
  return config;
}

}  // namespace ddprun
