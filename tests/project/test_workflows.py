"""The workflows of .github parse, run commands that exist, and store no secrets."""

import glob
import os
import re
import subprocess

import pytest

from support.paths import ROOT

yaml = pytest.importorskip("yaml")
PATHS = sorted(glob.glob(os.path.join(ROOT, ".github", "workflows", "*.yml")))
if not PATHS:
    pytest.skip("the workflows are not here", allow_module_level=True)


@pytest.fixture(params=PATHS, ids=os.path.basename)
def workflow(request):
    with open(request.param, encoding="utf-8") as file:
        return yaml.safe_load(file)


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_jobs_and_triggers_are_complete(workflow):
    assert workflow["name"] and workflow[True]  # YAML 1.1 reads the key `on` as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"] in ("ubuntu-22.04", "ubuntu-24.04")
        assert job.get("needs", name) in workflow["jobs"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_actions_are_pinned_by_version_tags(workflow):
    for step in steps(workflow):
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+\.\d+)?", step.get("uses", "a/b@v1"))


def test_commands_are_shell_code_and_make_targets(workflow):
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
        targets = set(re.findall(r"^([\w-]+):", file.read(), re.M))
    for step in steps(workflow):
        command = step.get("run", "")
        assert subprocess.run(["bash", "-n"], input=command, text=True).returncode == 0
        assert set(re.findall(r"^make ([\w-]+)", command, re.M)) <= targets
        assert "${{" not in command, "an expression in a script can inject code; use env"
        for path in re.findall(r"^\.ci/\w+", command, re.M):
            assert os.access(os.path.join(ROOT, path), os.X_OK)


def test_no_workflow_uses_stored_secrets():
    text = "".join(open(path, encoding="utf-8").read() for path in PATHS)
    assert "secrets." not in text and "password" not in text


def test_release_publishes_by_oidc_after_the_wheels():
    with open(os.path.join(ROOT, ".github", "workflows", "release.yml")) as file:
        jobs = yaml.safe_load(file)["jobs"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == "wheels"
    assert publish["if"] == "github.event_name == 'release'" and publish["environment"]
    assert list(publish["steps"][-1]) == ["uses"]  # no token, no index other than the default
    (wheels,) = [step for step in jobs["wheels"]["steps"] if "setup-python" in step.get("uses", "")]
    assert wheels["with"]["python-version"].split() == ["3.10", "3.11", "3.12", "3.13"]


def test_tag_check_reads_the_version():
    with open(os.path.join(ROOT, ".github", "workflows", "release.yml")) as file:
        jobs = yaml.safe_load(file)["jobs"]
    (check,) = [step for step in jobs["wheels"]["steps"] if "TAG" in step.get("env", {})]
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        version = re.search(r'^version = "(.*)"$', file.read(), re.M)[1]
    for tag, status in ((f"v{version}", 0), (version, 1), ("v9", 1)):
        done = subprocess.run(
            ["bash", "-e", "-c", check["run"]], cwd=ROOT, env={**os.environ, "TAG": tag}
        )
        assert done.returncode == status
