from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agl_cli_kit import main


def test_check_runs_nothing(project, capsys):
    assert main(["train", "train.toml", "--check"]) == 0
    out = capsys.readouterr().out
    assert "train.toml is valid" in out
    assert ["train_dataset", "2", "tasks"] in [line.split() for line in out.splitlines()]
    assert main(["train", "train.toml", "--check", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["problems"]) == ("ok", [])
    assert said["parts"]["val_dataset"] == "3 tasks"


@pytest.mark.parametrize("key", [None, "wrong"])
def test_check_checks_the_key(project, capsys, monkeypatch, key):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        do_POST = do_GET

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        if key is not None:
            monkeypatch.setenv("OPENAI_API_KEY", key)
        assert main(["train", "train.toml", "--check", "--set", "algorithm=apo"]) == 2
        server.shutdown()
    said = capsys.readouterr().err
    assert ("cannot be called: AuthenticationError" if key else "set OPENAI_API_KEY") in said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm=baselin", "algorithm: no algorithm 'baselin' is installed; did you mean 'base"),
        ("algorithm.n_epoch=3", "algorithm.n_epoch: unknown option; did you mean 'n_epochs'?"),
        ("algorithm.n_epochs=many", "algorithm.n_epochs: should be a valid integer, not 'many'"),
        ("store=3", "store: should be a name or a table with a 'type', not 3"),
        ("store=nothing.toml", "store: "),
        ("tracer=collections:Counter", "tracer: collections.Counter is not a subclass of Tracer"),
        ("strategy.n_runners=x", "strategy.n_runners: should be a valid integer"),
        ("trainer.n_runners=0", "trainer.n_runners: should be greater than or equal to 1, not 0"),
        ("trainer.runners=1", "trainer.runners: unknown option; did you mean 'n_runners'?"),
        ("algoritm=x", "algoritm: unknown option; did you mean 'algorithm'?"),
        ("agent=agl_cli_agent.py:solv", "agent: agl_cli_agent has no 'solv'; did you mean 'solve'"),
        (
            "agent=agl_cli_agent.py:number",
            "agent: agl_cli_agent.py:number is of type int, not an agent",
        ),
        ("agent=agl_cli_agent:NoSolver", "cannot be called as an agent"),
        (
            "agent=agl_cli_agent.py:takes_nothing_an_agent_gets",
            "takes_nothing_an_agent_gets(x) cannot be an agent",
        ),
        ("agent=nothing.py:solve", "agent: there is no file "),
        ("agent=no_such_module:solve", "agent: there is no module 'no_such_module'"),
        ("agent=solve", "agent: 'solve' is not of the form 'package.module:Name'"),
        ("agent=[1]", "agent: should be a reference or a table with a 'type'"),
        ("train_dataset=x.parquet", "train_dataset: 'x.parquet' is not a dataset"),
        ("train_dataset=gone.jsonl", "cannot be read: No such file or directory"),
        ("train_dataset=agl_cli_agent.py:number", "train_dataset: a int is not a dataset"),
        ("train_dataset=[]", "train_dataset: the list is empty"),
        ("train_dataset=3", "train_dataset: should be a path"),
        ("hooks=['agl_cli_agent.py:solve']", "hooks.0: "),
        ("interceptors=['agl_cli_agent.py:number']", "interceptors.0: 3 is not an interceptor"),
        ("resources.prompt.type=prompt", "resources.prompt.type: there is no resource type"),
        ("resources.prompt.templat=x", "resources.prompt.templat: unknown option; did you mean"),
        ("resources.prompt.engine=x", "resources.prompt.engine: there is no template engine 'x'"),
        ("resources.other.x=1", "resources.other: has no 'type' (known: llm"),
        ("resources=3", "resources: should be a valid dictionary, not 3"),
        ("agent.x=3", "agent.x: unknown option: agl_cli_agent.py:solve is not an environment"),
        ("justaword", "--set: 'justaword' is not of the form key=value"),
        ("trainer.n_runners.x=1", "--set: trainer.n_runners is not a table"),
    ],
)
def test_a_mistake_is_one_line_with_the_path_to_it(project, capsys, override, message):
    assert main(["train", "train.toml", "--check", "--set", override]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("agl: error: train.toml: ")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_check_tells_all_problems_at_once(project, capsys):
    wrong = {
        "trainer.n_runner": "3",
        "logging.level": "LOUD",
        "logging.submodule_levels.agl_core": "QUIET",
        "agent": "gone.py:solve",
        "train_dataset": "gone.jsonl",
        "algorithm": "baselin",
        "tracer": "collections:Counter",
        "resources.other.x": "1",
        "hooks": "['agl_cli_agent.py:number']",
        "runner.heartbeat_launch_mode": "never",
        "runner.type": "agent",
    }
    overrides = [word for key, value in wrong.items() for word in ("--set", f"{key}={value}")]
    assert main(["train", "train.toml", "--check", *overrides]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(line.startswith("agl: error: train.toml: ") for line in said.err.splitlines())
    for key in wrong.keys() - {"resources.other.x", "hooks", "runner.type"}:
        assert f" {key.removesuffix('.agl_core')}" in said.err
    assert " resources.other: " in said.err
    assert " hooks.0: " in said.err
    assert main(["train", "train.toml", "--check", "--json", *overrides]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "failed"
    assert len(found["problems"]) == len(said.err.splitlines()) >= 7
    # A run tells them too, in one line.
    assert main(["train", "train.toml", *overrides]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "; agent: there is no file" in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "logging.level=LOUD",
            "logging.level: 'LOUD' is not a log level; use one of CRITICAL, DEBUG",
        ),
        ("algorithm=agl_cli_agent.py:number", "algorithm: "),
        ("algorithm=agl_cli_agent.py:undecorated", "@algo cannot fill the parameter 'task'"),
        ("algorithm=agl_cli_agent.py:tasks", "made a list, which is not an Algorithm"),
        ("runner={heartbeat_launch_mode='x'}", "should be 'thread' or 'asyncio', not 'x'"),
        ("strategy={type='shm', main_thread='runner'}", "main_thread='runner' needs n_runners=1"),
    ],
)
def test_check_finds_what_a_run_would_refuse(project, capsys, override, message):
    for check in (["--check"], []):
        assert main(["train", "train.toml", *check, "--set", override]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("check", [["--check"], []])
def test_a_run_needs_an_algorithm(project, capsys, check):
    lines = (project / "train.toml").read_text().splitlines()
    (project / "bare.toml").write_text("\n".join(x for x in lines if "algorithm" not in x))
    assert main(["train", "bare.toml", *check]) == 2
    assert "bare.toml: algorithm: is missing; add one" in capsys.readouterr().err


SEARCH = """
import agl_core as agl
from agl_algorithm_kit import run_batch

async def plain(*, store, train_dataset, val_dataset, initial_resources):
    await run_batch(store, train_dataset, resources=initial_resources)

decorated = agl.algo(plain)

class Search(agl.Algorithm):
    def __init__(self, times=1):
        self.times = times

    async def run(self, train_dataset=None, val_dataset=None):
        for _ in range(self.times):
            await run_batch(self.get_store(), train_dataset,
                            resources=self.get_initial_resources(), run=None)

def make():
    return Search(2)
"""


@pytest.mark.parametrize(
    ("algorithm", "rollouts"),
    [
        ("agl_cli_search.py:plain", 2),
        ("agl_cli_search:plain", 2),
        ("./agl_cli_search.py:decorated", 2),
        ("agl_cli_search.py:Search", 2),
        ("{type = 'agl_cli_search.py:Search', times = 3}", 6),
        ("agl_cli_search.py:make", 4),
    ],
)
def test_an_algorithm_in_a_file(project, capsys, algorithm, rollouts):
    (project / "agl_cli_search.py").write_text(SEARCH)
    assert main(["train", "train.toml", "--json", "--set", f"algorithm={algorithm}"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["metrics"]["succeeded"] + said["metrics"]["failed"] == rollouts
    assert main(["train", "train.toml", "--check", "--set", f"algorithm={algorithm}"]) == 0
    shown = capsys.readouterr().out
    assert "agl_cli_search" in shown


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.toml", 'agent = "x"\n[trainer\n', "bad.toml is not valid TOML: "),
        ("bad.toml", 'agent = "x"\n[trainer\n', "(at line 2, column 9)"),
        ("bad.yaml", "agent: x\n b: [", "bad.yaml is not valid YAML"),
        ("bad.txt", "", "bad.txt is not one of .toml, .yaml, .yml, .json"),
        ("bad.toml", "", "bad.toml: agent: is missing"),
    ],
)
def test_a_malformed_file_is_one_line_with_the_place(project, capsys, name, text, message):
    (project / name).write_text(text)
    assert main(["train", name]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_missing_package_is_one_line_with_the_pip_command(project, capsys):
    (project / "agl_cli_wants.py").write_text(
        "from agl_core.errors import MissingDependencyError\n"
        "def make():\n"
        "    raise MissingDependencyError('GEPA', pip='acme')\n"
    )
    assert main(["train", "train.toml", "--set", "algorithm={type='agl_cli_wants:make'}"]) != 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == ("agl: error: GEPA needs a package that is not installed: pip install 'acme'")


def test_traceback_shows_where_on_request(project, capsys):
    assert main(["train", "train.toml", "--set", "store=nothing", "--traceback"]) == 2
    assert "PluginNotFoundError" in capsys.readouterr().err


def test_with_json_an_error_is_also_printed_as_json(project, capsys):
    assert main(["train", "train.toml", "--set", "store=nothing", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "failed"
    assert said["error"]["type"] == "PluginNotFoundError"


def test_a_run_ends_with_one_json_object(project, agl):
    done = agl("train", "train.toml", "--json", "--set", "algorithm.n_epochs=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    said = json.loads(done.stdout)
    assert said["status"] == "succeeded"
    assert said["run"]["id"].startswith("run-")
    assert said["run"]["parts"]["algorithm"] == "baseline"
    counts = {name: said["metrics"][name] for name in ("rollouts", "succeeded", "failed")}
    assert counts == {"rollouts": 10, "succeeded": 10, "failed": 0}
    assert said["best_resources"]["resources"]["prompt"]["template"] == "{q}!"


@pytest.mark.usefixtures("project")
def test_a_run_in_this_process_is_the_same(capsys):
    assert main(["train", "train.toml", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["metrics"]["succeeded"]) == ("succeeded", 5)
    assert main(["train", "train.toml"]) == 0
    assert "best resources" in capsys.readouterr().out


def test_metrics_are_those_that_the_algorithm_reported(project, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write("\nfrom agl_core.plugins import notify\n@agl.algo\n")
        file.write("def telling(*, train_dataset, val_dataset):\n    for step in range(3):\n")
        file.write("        metrics = {'score': step / 2}\n")
        file.write("        notify('algorithm_step', algorithm='t', step=step, metrics=metrics)\n")
    done = agl("train", "train.toml", "--json", "--set", "algorithm=agl_cli_agent:telling")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert (metrics["steps"], metrics["score"], metrics["rollouts"]) == (3, 1.0, 0)


def test_the_best_resources_are_the_runs_own(project, capsys):
    """Another run of the same store writes its prompt before this one has ended."""
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(
            """
@agl.algo
async def shared(*, run, store, train_dataset, val_dataset):
    own = {"prompt": agl.PromptTemplate(template="own", engine="f-string")}
    await run.set_result(await run.put_resources("best", own))
    other = {"prompt": agl.PromptTemplate(template="other", engine="f-string")}
    await store.update_resources("day/best", other)
"""
        )
    command = ["train", "train.toml", "--json", "--set", "algorithm=agl_cli_agent:shared"]
    assert main([*command, "--run", "night"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["best_resources"]["resources_id"] == "night/best"
    assert said["best_resources"]["resources"]["prompt"]["template"] == "own"


def test_a_run_ends_with_a_table_for_people(project, agl):
    done = agl("train", "train.toml")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["status"] == "succeeded"
    assert rows["rollouts"] == "5"
    assert rows["prompt"] == "{q}!"


def test_a_key_in_the_resources_is_not_printed(project, agl):
    with (project / "train.toml").open("a") as file:
        file.write('[resources.llm]\ntype = "llm"\nendpoint = "e"\nmodel = "m"\n')
        file.write('api_key = "sk-secret"\n')
    for arguments in (["--json"], []):
        done = agl("train", "train.toml", *arguments)
        assert done.returncode == 0, done.stderr
        assert "sk-secret" not in done.stdout + done.stderr


def test_an_algorithm_that_fails_is_exit_code_1(project, agl):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write("\n@agl.algo\ndef broken(*, train_dataset, val_dataset):\n")
        file.write("    raise RuntimeError('no luck')\n")
    done = agl("train", "train.toml", "--json", "--set", "algorithm=agl_cli_agent:broken")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == {"type": "RuntimeError", "message": "no luck"}
    last = done.stderr.splitlines()[-1]
    assert last == "agl: error: RuntimeError: no luck (--traceback shows where)"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_cleanly(project, number):
    with (project / "agl_cli_agent.py").open("a") as file:
        file.write(
            "\nimport asyncio, os\n\n@agl.rollout\nasync def endless(task, prompt_template):\n"
        )
        file.write("    os.write(1, b'STARTED\\n')\n    await asyncio.Event().wait()\n")
    command = [sys.executable, "-m", "agl_cli_kit", "train", "train.toml", "--json"]
    quick = ["--set", "strategy.graceful_delay=0.1"]
    process = subprocess.Popen(
        [*command, "--set", "agent=agl_cli_agent:endless", *quick],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell or nohup may have started the tests with the signal ignored.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "STARTED\n"
            os.kill(process.pid, number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    said = json.loads(out.splitlines()[-1])
    assert said["status"] == "interrupted"
    assert said["metrics"]["succeeded"] == 0
    assert "Traceback" not in err


def test_a_yaml_file_means_the_same(project, agl):
    (project / "train.yaml").write_text(
        "agent: agl_cli_agent:Solver\n"
        "train_dataset: agl_cli_agent.py:tasks\n"
        "algorithm: {type: baseline, span_verbosity: none}\n"
        "strategy: shm\n"
        "hooks: ['agl_cli_agent:Quiet']\n"
        "logging: {level: WARNING}\n"
    )
    done = agl("train", "train.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["succeeded"] == 3
    assert "INFO" not in done.stderr


def test_check_imports_nothing_heavy(project):
    code = (
        "import sys\nfrom agl_cli_kit import main\n"
        "assert main(['train', 'train.toml', '--check']) == 0\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
    heavy = {"aiohttp", "fastapi", "uvicorn", "rich", "jinja2", "yaml", "psutil", "google"}
    assert loaded & heavy == set()
    assert "opentelemetry" not in loaded
