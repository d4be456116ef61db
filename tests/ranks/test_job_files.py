"""The job files of examples/cluster, parsed as their tools parse them, and their script."""

import os
import re
import subprocess

import launching
import pytest

from support.paths import ROOT

FOLDER = os.path.join(ROOT, "examples", "cluster")
SCRIPT = os.path.join(FOLDER, "train.py")


def test_slurm_file_has_valid_options_and_starts_train_script():
    path = os.path.join(FOLDER, "slurm.sbatch")
    checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr
    with open(path) as file:
        text = file.read()
    assert text.startswith("#!/bin/bash\n")
    head, body = text.split("\nset -", 1)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", head, re.M))
    assert len(options) == head.count("#SBATCH")
    assert "#SBATCH" not in body  # sbatch ignores options after the first command
    assert int(options["nodes"]) * int(options["ntasks-per-node"]) == 4
    assert re.fullmatch(r"\d\d:\d\d:\d\d", options["time"])
    command = re.search(r"srun (.*?)\\\n +python (\S+)", body, re.S)
    assert {"--mpi=pmix", "--label", "--kill-on-bad-exit=1"} <= set(command[1].split())
    assert os.path.join(ROOT, command[2]) == SCRIPT


def test_kubernetes_file_matches_ranks_volumes_and_train_script():
    yaml = pytest.importorskip("yaml")
    with open(os.path.join(FOLDER, "mpijob.yaml")) as file:
        job = yaml.safe_load(file)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"} and replicas["Launcher"]["replicas"] == 1
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["mpirun"] and all(isinstance(a, str) for a in launcher["args"])
    arguments = launcher["args"]
    ranks = int(arguments[arguments.index("-n") + 1])
    assert ranks == replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    assert os.path.basename(arguments[arguments.index("python") + 1]) == os.path.basename(SCRIPT)
    template = replicas["Worker"]["template"]["spec"]
    (worker,) = template["containers"]
    assert worker["image"] == launcher["image"]
    mounted = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in template["volumes"]}
    assert mounted["checkpoints"] == arguments[arguments.index("--out") + 1]
    threads = f"MPGLUON_CPU_THREADS={worker['resources']['limits']['cpu']}"
    assert threads in arguments


@pytest.mark.slow
@pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
def test_restarted_train_script_continues_from_newest_checkpoint(tmp_path):
    """A restarted job continues from the newest checkpoint."""
    options = ["--out", str(tmp_path / "saved"), "--every", "2", "--units", "16"]
    for steps, printed in (("2", ["step 2"]), ("4", ["step 4"])):
        done = launching.run(2, SCRIPT, *options, "--steps", steps)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.findall(r"step \d", done.stdout) == printed
