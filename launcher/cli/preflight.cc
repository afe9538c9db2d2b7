#include "launcher/cli/preflight.h"

#include <unistd.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/data_checks.h"
#include "common/config/train_config.h"
#include "common/files.h"
#include "launcher/cli/job_facts.h"
#include "launcher/cli/master_address.h"
#include "launcher/cli/meeting.h"
#include "launcher/cli/preload.h"
#include "launcher/cli/program.h"
#include "launcher/cli/resume.h"
#include "launcher/cli/run_dir.h"
#include "launcher/cli/spec.h"

namespace ddprun::cli {
namespace {

// One turn of planning; the steps fill it in order.
struct Planning {
  const Options& options;
  const Surroundings& here;
  RunPlan plan;
  RunFolderState folder;
  std::optional<PreviousRun> previous;
  std::optional<TrainConfig> config;
};

std::string Absolute(const std::string& working_dir, const std::string& path) {
  std::string whole = path[0] == '/' ? path : JoinPath(working_dir, path);
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

// As short as it can be written from the working directory.
std::string Shown(const std::string& working_dir, const std::string& path) {
  const std::string inside = working_dir + "/";
  return absl::StartsWith(path, inside) ? path.substr(inside.size()) : path;
}

// --job-id, or torchrun's word for it.
std::optional<std::string> JobName(const Options& o) {
  if (o.job_id || o.torchrun.standalone) return o.job_id;
  return o.torchrun.rdzv_id;
}

absl::Status ChooseFolder(Planning& p) {
  const Options& o = p.options;
  v1::JobSpec& spec = p.plan.spec;
  const std::optional<std::string> name = JobName(o);
  const std::string runs = o.torchrun.log_dir && !o.run_dir
                               ? Absolute(p.here.working_dir, *o.torchrun.log_dir)
                               : JoinPath(p.here.working_dir, "runs");
  if (o.run_dir) {
    spec.set_run_dir(Absolute(p.here.working_dir, *o.run_dir));
  } else if (o.resume && name) {
    spec.set_run_dir(JoinPath(runs, *name));
  } else if (o.resume) {
    const absl::StatusOr<std::string> latest = ResolveLink(JoinPath(runs, "latest"));
    if (!latest.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--resume: there is no ", Shown(p.here.working_dir, JoinPath(runs, "latest")),
          " here; name the run folder with --run-dir"));
    }
    spec.set_run_dir(*latest);
  } else {
    const std::string id = name ? *name : NewJobId();
    spec.set_job_id(id);
    spec.set_run_dir(JoinPath(runs, id));
    // --rdzv-id is often the same for every run, and torchrun makes a new folder each time.
    if (!o.job_id && name && access(JoinPath(spec.run_dir(), "job.json").c_str(), F_OK) == 0) {
      spec.set_run_dir(JoinPath(runs, absl::StrCat(id, "_", NewJobId())));
    }
  }
  for (const std::string& path : {p.here.working_dir, spec.run_dir()}) {
    if (!IsUtf8(path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the path ", ShownBytes(path),
                       " is not UTF-8, which job.json could not hold: use another folder"));
    }
  }
  p.plan.shown_run_dir = Shown(p.here.working_dir, spec.run_dir());
  p.plan.point_latest = ParentPath(spec.run_dir()) == runs;
  return absl::OkStatus();
}

absl::Status LookAtFolder(Planning& p) {
  const Options& o = p.options;
  const std::string& shown = p.plan.shown_run_dir;
  absl::StatusOr<RunFolderState> folder = LookAtRunFolder(p.plan.spec.run_dir());
  if (!folder.ok()) return folder.status();
  p.folder = *std::move(folder);
  const bool anew = !p.folder.holds_job;
  if (p.folder.holds_job && !o.resume) {
    return absl::InvalidArgumentError(
        absl::StrCat("run folder ", shown, " holds job ", p.folder.job_id,
                     " already: go on with it by --resume, or choose another --run-dir"));
  }
  if (p.folder.holds_job && o.job_id && *o.job_id != p.folder.job_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("--job-id ", *o.job_id, ": run folder ", shown, " belongs to job ",
                     p.folder.job_id, "; leave --job-id away, or choose another --run-dir"));
  }
  if (anew && o.resume && o.config_path.empty() && o.program.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--resume: ", JoinPath(shown, "job.json"),
                     " does not exist, so there is nothing to go on with; give a train.cfg "
                     "or a program, or another --run-dir"));
  }
  if (anew && o.resume)
    p.plan.notes.push_back("there is nothing to resume yet: starting from scratch");
  std::string id = p.folder.job_id;
  if (anew) id = p.plan.spec.job_id();
  if (id.empty()) id = JobName(o).value_or(NewJobId());
  p.plan.spec.set_job_id(id);
  p.plan.spec.set_resume(p.folder.holds_job);
  if (!p.folder.holds_job) return absl::OkStatus();
  absl::StatusOr<PreviousRun> previous = ReadPreviousRun(p.folder, shown);
  if (!previous.ok()) return previous.status();
  p.previous = *std::move(previous);
  return absl::OkStatus();
}

absl::Status PlanTraining(Planning& p) {
  const Options& o = p.options;
  const absl::StatusOr<TrainConfig> config =
      o.config_path.empty()
          ? ParseTrainConfig(p.previous->config_toml, JoinPath(p.plan.shown_run_dir, "job.json"),
                             o.overrides, &p.plan.key_places)
          : LoadTrainConfig(o.config_path, o.overrides, &p.plan.key_places);
  if (!config.ok()) return config.status();
  p.config = *config;
  if (p.previous && !p.previous->trainer) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.config_path, ": run folder ", p.plan.shown_run_dir,
                     " holds a job of a program of your own; start a new run in another "
                     "--run-dir"));
  }
  if (p.previous) {
    absl::Status same = CompareForResume(p.previous->config, *config);
    if (!same.ok()) return same;
  }
  if (absl::Status worker = HaveTrainer(p.here); !worker.ok()) return worker;
  p.plan.spec.set_train_config_json(ToJson(*config));
  p.plan.spec.set_checkpoints_kept(static_cast<uint32_t>(config->checkpoint_keep));
  p.plan.spec.set_needs_shared_run_dir(true);
  p.plan.spec.set_working_dir(p.here.working_dir);
  return absl::OkStatus();
}

PythonUse PythonUseOf(const TorchrunOptions& t) {
  if (t.run_path) return PythonUse::kRunPath;  // before --no-python, as torchrun has it
  if (t.module) return PythonUse::kModule;
  return t.no_python ? PythonUse::kNever : PythonUse::kByName;
}

absl::Status PlanProgram(Planning& p) {
  const Options& o = p.options;
  const std::string path = p.here.Variable("PATH");
  std::vector<std::string> program = o.program;
  std::string working_dir = p.here.working_dir;
  if (program.empty()) {
    program.assign(p.previous->spec.program().begin(), p.previous->spec.program().end());
    working_dir = p.previous->spec.working_dir();
  } else if (p.previous && p.previous->trainer) {
    return absl::InvalidArgumentError(
        absl::StrCat(program[0], ": run folder ", p.plan.shown_run_dir,
                     " holds a job of the built-in trainer; start a new run in another "
                     "--run-dir"));
  } else if (o.torchrun_way) {
    const auto python = InTorchrunsWay(program, PythonUseOf(o.torchrun),
                                       p.here.Variable("PYTHON_EXEC"), path, working_dir);
    if (!python.ok()) return python.status();
    program = *python;
  }
  const auto found = FindProgram(program[0], path, working_dir);
  if (!found.ok()) return found.status();
  for (const std::string& argument : program) {
    if (!IsUtf8(argument)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the program's argument ", ShownBytes(argument),
                       " is not UTF-8, which job.json could not hold"));
    }
  }
  p.plan.spec.mutable_program()->Assign(program.begin(), program.end());
  p.plan.spec.set_working_dir(working_dir);
  return absl::OkStatus();
}

absl::Status PlanPreload(Planning& p) {
  v1::JobSpec& spec = p.plan.spec;
  const std::optional<std::string>& wished = p.options.preload;
  const Preload preload =
      ChoosePreload({spec.program().begin(), spec.program().end()}, spec.working_dir(), wished);
  if (preload.interpreter_words == 0 && wished && *wished != "auto" && *wished != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("--preload ", *wished,
                     ": only a Python script or module can be preloaded, as in python3 -u train.py "
                     "or train.py; leave --preload away for this program"));
  }
  v1::Launching* launching = spec.mutable_launching();
  launching->mutable_preload_modules()->Assign(preload.modules.begin(), preload.modules.end());
  launching->set_interpreter_words(preload.interpreter_words);
  return absl::OkStatus();
}

absl::Status PlanDone(Planning& p) {
  if (!p.folder.succeeded) return absl::OkStatus();
  if (p.config && AsksForMore(p.previous->config, *p.config, p.folder.final_step)) {
    return absl::OkStatus();
  }
  p.plan.already_done =
      absl::StrCat("job ", p.plan.spec.job_id(), " has succeeded already",
                   p.config ? absl::StrCat(" (", p.folder.final_step, " steps)") : "",
                   ": nothing to do; see ", JoinPath(p.plan.shown_run_dir, "result.json"));
  return absl::OkStatus();
}

// What differs from the first part of the job, and what is worth knowing about it.
void NoteResume(Planning& p) {
  if (!p.previous) return;
  const auto nodes = p.previous->spec.nodes_max();
  const uint32_t before = p.previous->spec.processes_per_node() * nodes;
  if (p.config && before != 0 && p.plan.world_size != 0 && before != p.plan.world_size) {
    p.plan.notes.push_back(absl::StrCat(
        "the run had ", before, " workers and now has ", p.plan.world_size,
        ": it goes on from the number of samples seen, but its results will not be bit-identical "
        "to those of an undisturbed run"));
  }
  if (p.config && p.folder.committed_step == 0) {
    p.plan.notes.push_back("no checkpoint has been committed yet: starting from scratch");
  }
}

absl::Status CheckWishedAddress(const Options& o, v1::Launching launching) {
  std::string option = "--master-addr";
  if (o.torchrun.rdzv_endpoint && !o.torchrun.standalone) option = "--rdzv-endpoint";
  if (launching.master_address().empty() && o.torchrun.local_address) {
    launching.set_master_address(*o.torchrun.local_address);  // as the coordinator will
    option = "--local-addr";
  }
  return CheckMasterAddress(launching, option);
}

}  // namespace

absl::Status HaveTrainer(const Surroundings& here) {
  const std::string worker = JoinPath(here.binary_folder, "ddp-worker");
  if (FindProgram(worker, "", "/").ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the trainer ", worker,
                                                 " is missing: run ./scripts/build.sh, which "
                                                 "builds it (a program of your own needs none)"));
}

absl::StatusOr<RunPlan> PlanRun(const Options& options, const Surroundings& here) {
  Planning p{options, here, {}, {}, {}, {}};
  absl::Status status = ChooseFolder(p);
  if (status.ok()) status = LookAtFolder(p);
  if (!status.ok()) return status;
  const bool trainer =
      !options.config_path.empty() || (options.program.empty() && p.previous->trainer);
  if (!trainer && !options.overrides.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", options.overrides[0],
                     ": changes a train.cfg; this job runs a program of your own"));
  }
  status = trainer ? PlanTraining(p) : PlanProgram(p);
  if (status.ok()) status = PlanDone(p);
  if (!status.ok() || !p.plan.already_done.empty()) {
    if (!status.ok()) return status;
    return std::move(p.plan);
  }
  status = FillSpec(options, here, p.previous ? &p.previous->spec : nullptr, &p.plan);
  if (status.ok()) status = PlanPreload(p);
  if (status.ok() && !SeveralNodes(options)) {
    status = CheckWishedAddress(options, p.plan.spec.launching());
  }
  if (!status.ok()) return status;
  NoteResume(p);
  if (p.config) {
    const uint32_t world = p.plan.world_size != 0 ? p.plan.world_size : p.plan.spec.nodes_min();
    if (IsCheckedWithoutTorch(*p.config)) {
      status = ValidateData(*p.config, static_cast<int>(world));
      if (!status.ok()) {
        return absl::Status(status.code(),
                            WithPlace(std::string(status.message()), p.plan.key_places));
      }
    } else {
      p.plan.ranks_to_check = world;
      p.plan.has_checkpoint = p.plan.spec.resume() && p.folder.committed_step > 0;
    }
  }
  p.plan.job_facts_json = JobFacts(p.plan, here);
  return std::move(p.plan);
}

}  // namespace ddprun::cli
