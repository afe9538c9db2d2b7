#!/usr/bin/env python3
"""Checks packaging/kubernetes: every object against its published schema, and that its parts fit together.

Core kinds: the JSON schemas of Kubernetes itself (package kubernetes-validate), strict, for the oldest version that has all
of it and for the newest that the package knows. JobSet and Kubeflow Trainer: the models of kubeflow-trainer-api, which are
generated from their OpenAPI documents. A key that no schema knows is an error. Needs both packages and PyYAML; scripts/lint.sh has them.
"""

import pathlib
import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST_KUBERNETES = "1.31"  # podFailurePolicy is stable since then
MODELS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): models.JobsetV1alpha2JobSet,
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): models.TrainerV1alpha1TrainingRuntime,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
}
LEAVE_SECONDS = 10  # after the grace, ddprun ends whatever is left
# Exit codes of ddprun that another try does not change.
FINAL_CODES = {2, 93}


def unknown_keys(given, known, path=""):
    """Keys of the document that did not survive the way through the model."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            if key not in known and value != {}:
                yield f"{path}.{key}"
            else:
                yield from unknown_keys(value, known.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(known, list):
        for index, (one, other) in enumerate(zip(given, known)):
            yield from unknown_keys(one, other, f"{path}[{index}]")


def check_schema(document):
    model = MODELS.get((document["apiVersion"], document["kind"]))
    if model is None:
        for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)
        return
    for key in unknown_keys(document, model.from_dict(document).to_dict()):
        yield f"{key}: the schema has no such key"


def find(node, key):
    """Every value of a key, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from find(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from find(value, key)


def option(command, name):
    return command[command.index(name) + 1] if name in command else None


def pods_of(document):
    """(pod spec, DNS name of its first pod) of an Indexed Job or a JobSet."""
    if document["kind"] == "Job":
        spec = document["spec"]["template"]["spec"]
        yield spec, f"{document['metadata']['name']}-0.{spec.get('subdomain')}", document["spec"]
    elif document["kind"] == "JobSet":
        for job in document["spec"]["replicatedJobs"]:
            name = f"{document['metadata']['name']}-{job['name']}-0-0.{document['spec']['network']['subdomain']}"
            yield job["template"]["spec"]["template"]["spec"], name, job["template"]["spec"]
    elif document["kind"] == "TrainingRuntime":
        for job in document["spec"]["template"]["spec"]["replicatedJobs"]:
            yield job["template"]["spec"]["template"]["spec"], None, None


def check_pod(spec, first_pod, job, services):
    container = spec["containers"][0]
    command = container["command"]
    grace = float(option(command, "--grace") or 30)
    if spec["terminationGracePeriodSeconds"] < grace + LEAVE_SECONDS:
        yield f"terminationGracePeriodSeconds {spec['terminationGracePeriodSeconds']} is too short for --grace {grace:g}"
    if spec["restartPolicy"] != "Never":
        yield "restartPolicy must be Never: a container that starts again in its pod is no new node"
    if not any(mount["mountPath"] == "/dev/shm" for mount in container["volumeMounts"]):
        yield "/dev/shm has 64 MiB"
    if not any(variable["name"] == "DDPRUN_SECRET" for variable in container["env"]):
        yield "there is no DDPRUN_SECRET"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    if mounted != {volume["name"] for volume in spec["volumes"]}:
        yield f"volumes and volumeMounts differ: {mounted}"
    if job is None:
        return
    if option(command, "--coordinator") != f"{first_pod}:29400":
        yield f"--coordinator {option(command, '--coordinator')} is not the first pod, {first_pod}:29400"
    if not job["completions"] == job["parallelism"] == int(option(command, "--nnodes")):
        yield "completions, parallelism and --nnodes differ"
    if job["completionMode"] != "Indexed" or option(command, "--node-rank") != "$(JOB_COMPLETION_INDEX)":
        yield "a pod does not know its index"
    codes = [set(rule["onExitCodes"]["values"]) for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    names = {rule["onExitCodes"]["containerName"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule}
    if codes != [FINAL_CODES] or names != {container["name"]}:
        yield f"podFailurePolicy ends the job at {codes} of {names}"
    for service in services:
        if service["metadata"]["name"] != spec["subdomain"] or not service["spec"]["publishNotReadyAddresses"]:
            yield "the Service does not give the pods their names before they are ready"


def main():
    failures = checked = 0
    for path in sorted((ROOT / "packaging" / "kubernetes").glob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        services = [document for document in documents if document["kind"] == "Service"]
        for document in documents:
            checked += 1
            problems = []
            try:
                problems += check_schema(document)
                for spec, first_pod, job in pods_of(document):
                    problems += check_pod(spec, first_pod, job, services)
            except Exception as error:  # pylint: disable=broad-except
                problems.append(f"{type(error).__name__}: {getattr(error, 'message', error)}")
            for problem in problems:
                print(f"{path.relative_to(ROOT)}: {document['kind']} {document['metadata']['name']}: {problem}")
            failures += len(problems)
    print(f"manifests: {checked} objects, {failures} problems")
    return 1 if failures or not checked else 0


sys.exit(main())
