"""What must hold after a run of the fault runner, whatever its faults. Each check yields sentences about what is wrong."""

import json
import pathlib
import struct

THAW_SECONDS = 1.0  # after a frozen node went on, its workers may run for so long until they are ended


def expected_final(steps):
    """What a fault_worker prints at its end: its arithmetic, in doubles."""
    slope = offset = 0.0
    for step in range(1, steps + 1):
        x = (step * 7 % 21) / 10 - 1
        error = slope * x + offset - (3 * x + 2)
        slope -= 0.1 * error * x
        offset -= 0.1 * error
    return slope, offset


def check_generations(events, nodes_min, nodes_max):
    """Ranks and sizes of each generation, and that the coordinator never began one before the end of another."""
    by_generation = {}
    for index, event in enumerate(events):
        by_generation.setdefault(event["generation"], []).append((index, event))
    numbers = [event["generation"] for event in events if event["event"] == "generation_started"]
    if numbers != sorted(set(numbers)):
        yield f"generations started in the order {numbers}"
    for generation in numbers:
        own = [event for _, event in by_generation[generation]]
        start = next(event for event in own if event["event"] == "generation_started")
        if not nodes_min <= start["world_size"] <= nodes_max:
            yield f"generation {generation} has {start['world_size']} workers, allowed are {nodes_min} to {nodes_max}"
        ranks = [event["rank"] for event in own if event["event"] == "worker_started"]
        if len(ranks) != len(set(ranks)) or any(not 0 <= rank < start["world_size"] for rank in ranks):
            yield f"generation {generation} of {start['world_size']} workers started ranks {ranks}"
        ended = next((index for index, event in by_generation[generation] if event["event"] == "generation_ended"), None)
        late = [index for index, event in by_generation.get(generation + 1, []) if event["event"] == "worker_started"]
        begin = by_generation[generation][0][0]
        if late and any(event["event"] == "job_started" for event in events[begin:min(late)]):
            continue  # by another coordinator, after the one that would have told the end was killed
        if late and (ended is None or min(late) < ended):
            yield f"a worker of generation {generation + 1} started before generation {generation} had ended"


def read_traces(folder):
    """{generation: [(first, last, node, rank)]} in seconds of the common monotonic clock, from fault_worker's traces."""
    found = {}
    for path in pathlib.Path(folder).glob("g*-r*"):
        generation, rank, node, _ = path.name.split("-")
        data = path.read_bytes()
        times = struct.unpack(f"<{len(data) // 8}q", data[:len(data) // 8 * 8])
        if times:
            found.setdefault(int(generation[1:]), []).append((times, node, int(rank[1:])))
    return found


def check_overlap(traces, thaws):
    """No worker of a generation took a step after one of a later generation had begun, but just after its node was thawed."""
    for generation, runs in traces.items():
        later = [times[0] for number, others in traces.items() if number > generation for times, _, _ in others]
        if not later:
            continue
        for times, node, rank in runs:
            for time_ns in times:
                excused = any(name == node and at <= time_ns / 1e9 <= at + THAW_SECONDS for name, at in thaws)
                if time_ns >= min(later) and not excused:
                    yield (f"rank {rank} of generation {generation} took a step on node {node} "
                           f"{(time_ns - min(later)) / 1e9:.3f} s after a later generation had begun")
                    break


def check_checkpoints(run_dir):
    """Every checkpoint folder holds a manifest whose files are there with their sizes; nothing lies half done as real."""
    for path in sorted(pathlib.Path(run_dir, "checkpoints").glob("step-*")):
        if ".bad-" in path.name:
            yield f"{path.name}: a checkpoint did not verify"
            continue
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            yield f"{path.name}: {error}"
            continue
        for file in manifest.get("files", []):
            target = path / file["name"]
            if not target.is_file() or target.stat().st_size != file["bytes"]:
                yield f"{path.name}/{file['name']}: is not {file['bytes']} bytes"
