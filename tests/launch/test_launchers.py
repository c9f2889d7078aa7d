"""The launchers: their scripts are run, most with a torchrun that writes down its arguments; manifests fit a schema."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from tiny_runs import tiny_recipe
from torch.distributed.run import get_args_parser

from widthwise.cli.main import ON_SEVERAL_PROCESSES, app
from widthwise.recipe.recipe import load_recipe
from widthwise.run_dir import RunDir
from widthwise.training.checkpoint_folder import checkpoint_paths
from widthwise.yaml_io import recipe_path, to_yaml

ROOT = Path(__file__).parents[2]
SLURM_JOB = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node[3-4]", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "9"}
SKYPILOT_TASK = {"SKYPILOT_NODE_IPS": "10.0.0.3\n10.0.0.7", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_TASK_ID": "sky-41"}
PATIENCE_SECONDS = 200
COMMANDS = {
    "torchrun": """
        trap 'echo "$1" > "$RECORDS/signalled"; exit 1' USR1
        printf '%s\\0' "$@" > "$RECORDS/arguments.new"
        mv "$RECORDS/arguments.new" "$RECORDS/arguments"
        while [ -n "${WAITS:-}" ]; do sleep 0.05; done
        exit "${STATUS:-0}"
    """,
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        exec "$@"
    """,
    "scontrol": """
        case $1 in
        show) printf '%s\\n' node3 node4 ;;
        requeue) echo "$2" > "$RECORDS/requeued" ;;
        esac
    """,
}
"""What the launchers call. The real ones are on clusters."""
TWO_NODES = {
    "torchrun": """
        exec "$PYTHON" -m torch.distributed.run "${@/--nproc-per-node=gpu/--nproc-per-node=1}"
    """,
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        "$@" & "$@" &
        trap 'kill -USR1 $(jobs -p)' USR1
        wait || true
        wait
        exit 1
    """,
    "scontrol": COMMANDS["scontrol"].replace("node3 node4", "localhost"),
}
"""A cluster of two nodes without GPUs, both of them this machine; what it runs is stopped and so ends with 1."""


MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "launch" / "kubernetes.yaml").read_text())}
POD = MANIFESTS["Job"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SKYPILOT = yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())
SCRIPTS = {
    "slurm": (ROOT / "launch" / "slurm.sbatch").read_text(),
    "kubernetes": CONTAINER["args"][0],
    "skypilot": SKYPILOT["run"],
    "skypilot setup": SKYPILOT["setup"],
}


class Launch:
    """A script that runs in a folder of its own."""

    def __init__(self, folder: Path, script: str, variables: dict[str, str], *arguments: str, commands=COMMANDS):
        for name, body in commands.items():
            (folder / name).write_text(f"#!/usr/bin/env bash\n{body}")
            (folder / name).chmod(0o755)
        self._records = folder
        environment = {**os.environ, **variables, "RECORDS": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
        (folder / "script").write_text(script)
        command = ["bash", "-eu", str(folder / "script"), *arguments]
        with open(folder / "errors", "w") as errors:
            self.process = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)

    def record(self, name: str) -> str | None:
        path = self._records / name
        return path.read_text() if path.is_file() else None

    def arguments(self) -> list[str]:
        """Those of torchrun, when it has begun."""
        self.wait_for(lambda: self.record("arguments") is not None)
        return str(self.record("arguments")).split("\0")[:-1]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.record("errors")
            time.sleep(0.02)

    def status(self) -> int:
        try:
            return self.process.wait(PATIENCE_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def torchrun_options(arguments: Sequence[str]) -> Any:
    """What torchrun itself reads from the arguments, which must start a verb that works on several processes."""
    options = get_args_parser().parse_args(arguments)
    assert options.module
    assert options.training_script == "widthwise"
    assert options.training_script_args[0] in ON_SEVERAL_PROCESSES
    return options


def check_widthwise(arguments: Sequence[str]) -> None:
    """The command line accepts the arguments, and a recipe that they name is there with all keys that they change."""
    verb, *others = arguments
    command = typer.main.get_command(app).commands[verb]
    options = command.make_context(verb, list(others)).params
    given = options.get("recipes") or [str(options["recipe"]), *(options["overrides"] or ())]
    paths, overrides = [each for each in given if "=" not in each], [each for each in given if "=" in each]
    for path in paths:
        if verb == "train":
            load_recipe(path, overrides)
        assert recipe_path(path, ROOT).is_file()


def test_scripts_pass_shellcheck() -> None:
    commands = [["bash", "-n"], ["shellcheck", "--shell=bash", "--external-sources", "-"]]
    for command in filter(lambda each: shutil.which(each[0]), commands):
        for script in SCRIPTS.values():
            checked = subprocess.run(command, input=script, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("name", "variables", "endpoint", "hosts"),
    [
        ("slurm", SLURM_JOB, "node3:20041", None),
        ("kubernetes", {"JOB_COMPLETION_INDEX": "0"}, "widthwise-0.widthwise:29500", True),
        ("kubernetes", {"JOB_COMPLETION_INDEX": "1"}, "widthwise-0.widthwise:29500", False),
        ("skypilot", {**SKYPILOT_TASK, "SKYPILOT_NODE_RANK": "0"}, "10.0.0.3:29500", True),
        ("skypilot", {**SKYPILOT_TASK, "SKYPILOT_NODE_RANK": "1"}, "10.0.0.3:29500", False),
    ],
)
def test_nodes_meet_at_the_first_and_train_a_recipe_that_is_there(name, variables, endpoint, hosts, tmp_path) -> None:
    launch = Launch(tmp_path, SCRIPTS[name], variables)
    options = torchrun_options(launch.arguments())
    assert launch.status() == 0
    assert (options.nnodes, options.rdzv_backend, options.rdzv_endpoint) == ("2", "c10d", endpoint)
    assert options.rdzv_id in ("41", "sky-41", "widthwise")
    assert options.rdzv_conf == ("" if hosts is None else f"is_host={str(hosts).lower()}")
    check_widthwise(options.training_script_args)


@pytest.mark.parametrize("status", [0, 3])
def test_a_slurm_job_takes_the_arguments_of_train_and_ends_as_torchrun_does(tmp_path: Path, status: int) -> None:
    given = ["configs/small.yaml", "--out", "a b", "train.steps=3"]
    launch = Launch(tmp_path, SCRIPTS["slurm"], {**SLURM_JOB, "STATUS": str(status)}, *given)
    assert torchrun_options(launch.arguments()).training_script_args == ["train", *given]
    assert launch.status() == status
    assert launch.record("requeued") is None


def test_a_slurm_job_whose_time_is_up_ends_its_processes_and_is_queued_again(tmp_path: Path) -> None:
    launch = Launch(tmp_path, SCRIPTS["slurm"], {**SLURM_JOB, "WAITS": "yes"})
    options = torchrun_options(launch.arguments())
    assert "SIGUSR1" in options.signals_to_handle.split(",")
    launch.process.send_signal(signal.SIGUSR1)
    assert launch.status() == 1
    assert launch.record("signalled") is not None
    assert launch.record("requeued") == "41\n"


def stopped_job(folder: Path, run: RunDir, recipe: Path) -> str:
    """What a job says that trains until its time is up, which is as soon as it has written a record."""
    variables = {**SLURM_JOB, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    n_before = len(run.metrics())
    folder.mkdir()
    job = Launch(folder, SCRIPTS["slurm"], variables, str(recipe), "--out", str(run.path), commands=TWO_NODES)
    job.wait_for(lambda: len(run.metrics()) > n_before)
    job.process.send_signal(signal.SIGUSR1)
    assert job.status() == 1
    assert job.record("requeued") == "41\n"
    return str(job.record("errors"))


@pytest.mark.hard
def test_two_agents_save_at_the_end_of_a_slurm_job_and_go_on_in_the_next(tmp_path: Path) -> None:
    recipe, run = tmp_path / "recipe.yaml", RunDir(tmp_path / "run")
    recipe.write_text(to_yaml(tiny_recipe("train.steps=1000000", "train.checkpoint_every=1000000")))
    first, second = (stopped_job(tmp_path / name, run, recipe) for name in ("first", "second"))
    earlier, later = sorted(int(path.name.removeprefix("step_")) for path in checkpoint_paths(run.checkpoints))
    assert f"error: {run.path}: stopped at step {earlier} of" in first
    assert f"resuming after step {earlier} of" in second
    assert f"error: {run.path}: stopped at step {later} of" in second
    assert [text.count("error: ") for text in (first, second)] == [1, 1]


def test_processes_are_killed_later_than_torchrun_needs_to_end_them() -> None:
    (notice,) = re.findall(r"^#SBATCH --signal=B:USR1@(\d+)$", SCRIPTS["slurm"], re.MULTILINE)
    for name, seconds in (("slurm", int(notice)), ("kubernetes", POD["terminationGracePeriodSeconds"])):
        (timeout,) = re.findall(r"--shutdown-timeout=(\d+)", SCRIPTS[name])
        assert int(timeout) < seconds


def test_the_manifest_fits_the_schema_of_kubernetes() -> None:
    assert set(MANIFESTS) == {"PersistentVolumeClaim", "Service", "Job"}
    for manifest in MANIFESTS.values():
        for version in ("1.31", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_parts_of_the_manifest_name_each_other() -> None:
    job, service = MANIFESTS["Job"], MANIFESTS["Service"]
    assert (CONTAINER["command"], len(CONTAINER["args"])) == (["bash", "-euc"], 1)
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert POD["subdomain"] == service["metadata"]["name"]
    first_pod = f"{job['metadata']['name']}-0.{POD['subdomain']}:{service['spec']['ports'][0]['port']}"
    assert f"--rdzv-endpoint={first_pod} " in SCRIPTS["kubernetes"]
    n_pods = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == n_pods
    assert f"--nnodes={n_pods} " in SCRIPTS["kubernetes"]
    claims = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName") for each in POD["volumes"]}
    assert claims["runs"] == MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert mounts.keys() == claims.keys()
    assert f"--out {mounts['runs']}/" in SCRIPTS["kubernetes"]


RESOURCES = {"infra", "accelerators", "network_tier", "job_recovery"}
TASK = {"name", "num_nodes", "workdir", "resources", "volumes", "envs", "setup", "run"}
"""The part of SkyPilot's task format (docs.skypilot.co, reference/yaml-spec) that the launcher may use."""


def test_the_task_has_the_fields_of_skypilot() -> None:
    resources = SKYPILOT["resources"]
    assert (SKYPILOT.keys() <= TASK, resources.keys() <= RESOURCES) == (True, True)
    assert resources["job_recovery"].keys() <= {"strategy", "max_restarts_on_errors"}
    assert re.fullmatch(r"[\w-]+:\d+", resources["accelerators"])
    assert re.fullmatch("[a-z][a-z0-9-]*", SKYPILOT["name"])
    assert SKYPILOT["num_nodes"] >= 1
    (shared,) = SKYPILOT["volumes"]
    assert f"--out {shared}/" in SCRIPTS["skypilot"]
