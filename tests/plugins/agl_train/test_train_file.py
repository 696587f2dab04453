from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import ConfigError
from agl_core.store import Interceptor
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_runner import LitAgentRunner
from agl_train.datasets import load_dataset
from agl_train.file import read_train_file
from agl_train.references import import_reference, is_reference


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


class TestDatasets:
    def write(self, directory: Path, name: str, text: str) -> str:
        (directory / name).write_text(text, encoding="utf-8")
        return name

    def load(self, directory: Path, name: str, text: str):
        return load_dataset(self.write(directory, name, text), directory, path="train_dataset")

    def test_a_list_is_itself(self, tmp_path):
        tasks = [1, 2]
        assert load_dataset(tasks, tmp_path, path="x") is tasks

    def test_files(self, tmp_path):
        rows = [{"q": "é", "n": 1}, {"q": "b", "n": None}]
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        assert self.load(tmp_path, "t.jsonl", "\ufeff" + lines + "\n\n") == rows
        assert self.load(tmp_path, "t.json", json.dumps(rows)) == rows
        table = 'q,a\n"x, y","1\n2"\nz,\n'
        assert self.load(tmp_path, "t.CSV", table) == [
            {"q": "x, y", "a": "1\n2"},
            {"q": "z", "a": ""},
        ]

    @pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0c", "\x1e"])
    def test_only_a_line_feed_ends_a_line(self, tmp_path, mark):
        assert self.load(tmp_path, "t.csv", f"q\na{mark}b\n") == [{"q": f"a{mark}b"}]
        if mark >= " ":  # JSON allows no others
            assert self.load(tmp_path, "t.jsonl", f'"a{mark}b"\r\n"c"\n') == [f"a{mark}b", "c"]

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("t.jsonl", '{"a": 1}\n\n{"a"', "line 3 is not JSON: "),
            ("t.json", '{"a": 1}', "contains a dict, not a list"),
            ("t.json", "[1,", "Expecting value: line 1 column 4"),
            ("t.csv", "a,b\n1,2\n1\n", "line 3 has not as many cells as the header"),
            ("t.csv", "a,b\n1,2,3\n", "line 2 has not as many cells as the header"),
            ("t.csv", "a,b\n", "t.csv is empty"),
            ("t.jsonl", "\n", "t.jsonl is empty"),
            ("t.json", 200_000 * "[" + 200_000 * "]", "t.json: maximum recursion"),
            ("t.parquet", "", "is not a dataset"),
        ],
    )
    def test_a_malformed_file_is_an_error(self, tmp_path, name, text, message):
        with pytest.raises(ConfigError) as caught:
            self.load(tmp_path, name, text)
        assert str(caught.value).startswith("train_dataset: ")
        assert message in str(caught.value)

    def test_a_file_without_text(self, tmp_path):
        (tmp_path / "t.jsonl").write_bytes(b"\xff\x00")
        with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
            load_dataset("t.jsonl", tmp_path, path="x")

    @pytest.mark.parametrize(
        ("attribute", "message"),
        [
            ("breaks", "agl_ds_parts.py:breaks raised KeyError: 'k'"),
            ("number", "a int is not a dataset"),
            ("none", "is None, not a dataset"),
            ("mapping", "a dict is not a dataset"),
        ],
    )
    def test_python(self, tmp_path, attribute, message):
        (tmp_path / "agl_ds_parts.py").write_text(
            "class Ten:\n    def __len__(self): return 10\n    def __getitem__(self, i): return i\n"
            "def breaks(): raise KeyError('k')\n"
            "number, mapping, ten = 3, {'a': 1}, Ten()\n"
            "def none(): return None\n"
        )
        assert len(load_dataset("agl_ds_parts.py:ten", tmp_path, path="x")) == 10
        assert len(load_dataset("agl_ds_parts:Ten", tmp_path, path="x")) == 10
        with pytest.raises(ConfigError, match=message):
            load_dataset(f"agl_ds_parts.py:{attribute}", tmp_path, path="x")


class TestReferences:
    def test_is_reference(self):
        yes = ["a:b", "a.b:c.d", "x.py:a", "../d/x.py:a", "C:\\x.py:a"]
        no = ["a", "a.b", "x.py", "x.py:", "a b:c", "t.jsonl", "http://x"]
        assert [is_reference(text) for text in yes + no] == [True] * len(yes) + [False] * len(no)

    def test_a_file_finds_the_files_beside_it(self, tmp_path):
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "agl_ref_a.py").write_text("from agl_ref_b import value\n")
        (tmp_path / "below" / "agl_ref_b.py").write_text("value = 7\n")
        assert import_reference("below/agl_ref_a.py:value", tmp_path, path="agent") == 7
        assert sys.path.count(str(tmp_path / "below")) == 1

    @pytest.mark.parametrize("attribute", ["loads", "solve"])
    def test_a_file_called_like_another_module(self, tmp_path, attribute):
        (tmp_path / "json.py").write_text(f"{attribute} = 1\n")
        with pytest.raises(ConfigError, match=r"agent: json\.py cannot be imported: another"):
            import_reference(f"json.py:{attribute}", tmp_path, path="agent")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("gone.py:a", "there is no file"),
            ("agent.py", r"name the object in agent\.py, as in agent\.py:NAME"),
            ("not-a-name.py:a", "its name is not an identifier"),
            ("agl_ref_bad.py:a", "module 'agl_ref_bad' does not import: SyntaxError"),
        ],
    )
    def test_an_import_that_fails_is_an_error(self, tmp_path, text, message):
        (tmp_path / "not-a-name.py").write_text("")
        (tmp_path / "agl_ref_bad.py").write_text("def (\n")
        with pytest.raises(ConfigError, match=message):
            import_reference(text, tmp_path, path="agent")


class TestPlans:
    @pytest.fixture
    def file(self, tmp_path) -> Path:
        (tmp_path / "agl_plan_agent.py").write_text(
            "import agl_core as agl\n\n@agl.rollout\ndef solve(task, llm): return 1.0\n"
            "class Hook(agl.Hook): ...\nhook = Hook()\n"
            "from agl_core.store import Interceptor\nclass Watch(Interceptor): ...\n"
            "async def audit(call, next): return await next(call)\n"
        )
        (tmp_path / "store.toml").write_text('type = "memory"\nscan_debounce_seconds = 3.0\n')
        file = tmp_path / "train.toml"
        file.write_text(
            'agent = "agl_plan_agent:solve"\n'
            'store = "store.toml"\n'
            'hooks = ["agl_plan_agent:Hook", "agl_plan_agent.py:hook"]\n'
            'interceptors = ["agl_plan_agent:Watch", "agl_plan_agent.py:audit"]\n'
            'strategy = { type = "shm", main_thread = "algorithm" }\n'
            'algorithm = "baseline"\n'
            "adapter = { agent_match = '.*' }\n"
            "train_dataset = [1, 2, 3]\n"
            "[trainer]\nn_runners = 3\nmax_rollouts = 5\nconcurrency = 4\n"
            '[resources.llm]\ntype = "llm"\nendpoint = "e"\nmodel = "m"\n'
            '[resources.other]\nresource_type = "prompt_template"\nengine = "jinja"\n'
            'template = "t"\n'
        )
        return file

    def test_a_trainer_of_the_parts(self, file):
        trainer = read_train_file(file).build_trainer()
        assert isinstance(trainer.strategy, SharedMemoryExecutionStrategy)
        assert (trainer.n_runners, trainer.max_rollouts) == (3, 5)
        assert isinstance(trainer.runner, LitAgentRunner)
        assert trainer.runner.concurrency == 4
        assert trainer.initial_resources is not None
        assert [r.resource_type for r in trainer.initial_resources.values()] == [
            "llm",
            "prompt_template",
        ]
        assert [type(hook).__name__ for hook in trainer.hooks] == ["Hook", "Hook"]
        watch, audit = trainer.interceptors
        assert type(watch).__name__ == "Watch"
        assert isinstance(audit, Interceptor)
        assert type(trainer.algorithm).__name__ == "Baseline"

    def test_without_the_algorithm(self, file):
        assert read_train_file(file).build_trainer(with_algorithm=False).algorithm is None

    def test_a_description(self, file):
        assert read_train_file(file).describe() == {
            "agent": "agl_plan_agent:solve",
            "train_dataset": "3 tasks",
            "algorithm": "baseline",
            "store": str(file.parent / "store.toml"),
            "adapter": "default",
            "strategy": "shm",
        }

    def test_overrides(self, file):
        plan = read_train_file(
            file,
            [
                "trainer.n_runners=7",
                "train_dataset=[1]",
                "algorithm.n_epochs=2",
                "logging.level=DEBUG",
                "resources.other.template=a = b",
            ],
        )
        assert plan.content.trainer.n_runners == 7
        assert plan.content.algorithm == {"type": "baseline", "n_epochs": 2}
        assert plan.content.logging.level == "DEBUG"
        assert plan.resources is not None
        assert plan.resources["other"].model_dump()["template"] == "a = b"
        assert len(plan.train_dataset or ()) == 1

    def test_a_store_is_beside_the_file_and_not_where_the_shell_is(self, file, monkeypatch):
        folder = file.parent / "elsewhere"
        folder.mkdir()
        monkeypatch.chdir(folder)
        text = file.read_text().replace('"store.toml"', '{ type = "sqlite", path = "runs.db" }')
        file.write_text(text)
        store: Any = read_train_file(file).content.store
        assert store["path"] == str(file.parent / "runs.db")
        store = read_train_file(file, ["store.path=typed.db"]).content.store
        assert store["path"] == "typed.db", "what the shell says is relative to the shell's folder"

    @pytest.mark.parametrize("given", ["[1, 0]", "[2]", "[0, inf]", '"wide"', "[0, 1, 2]"])
    def test_a_range_of_rewards_is_two_numbers_in_order(self, file, given):
        with pytest.raises(ConfigError, match=r"^trainer\.reward_range: .*must be the lowest"):
            read_train_file(file, [f"trainer.reward_range={given}"])
        assert read_train_file(file, ["trainer.reward_range=[0, 2]"]).reward_range == (0, 2)

    def test_no_resources_and_an_empty_table_of_them_differ(self, tmp_path, file):
        text = file.read_text().split("[resources.llm]")[0]
        file.write_text(text)
        assert read_train_file(file).resources is None
        file.write_text(text + "[resources]\n")
        assert read_train_file(file).resources == {}

    def test_a_component_refuses_its_options_when_it_is_built(self, file):
        plan = read_train_file(file, ["strategy.main_thread=runner"])
        with pytest.raises(ConfigError, match=r"^strategy: "):
            plan.build_trainer()
