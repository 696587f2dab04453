from __future__ import annotations

import pytest

from agl_core.errors import ConfigError
from agl_core.plugins import read_config_file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", 'a = 1\n[b]\nc = "x"\n'),
        ("c.yaml", "a: 1\nb:\n  c: x\n"),
        ("c.yml", "{a: 1, b: {c: x}}"),
        ("C.JSON", '{"a": 1, "b": {"c": "x"}}'),
    ],
)
def test_the_formats(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_config_file(tmp_path / name) == {"a": 1, "b": {"c": "x"}}
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert read_config_file(tmp_path / name) == {"a": 1, "b": {"c": "x"}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", "a = 1\nb = \n", "is not valid TOML: Invalid value (at line 2"),
        ("c.yaml", "a: 1\nb: [1\nc: 2\n", "is not valid YAML: "),
        ("c.yaml", "a: 1\nb: [1\nc: 2\n", "(at line 3"),
        ("c.json", '{"a": 1,\n "b"}', "is not valid JSON: Expecting ':' delimiter: line 2"),
        ("c.yaml", "- 1\n- 2\n", "holds a list and not a table"),
        ("c.yaml", "", "holds nothing and not a table"),
        ("c.yaml", "1: x\n", "has the key 1, which is not a string"),
        ("c.json", '"text"', "holds a text and not a table"),
        ("c.yaml", "a: 1\nb: 2\na: 3\n", "the key 'a' is in line 1 already (at line 3, column 1)"),
        ("c.yaml", "a:\n  b: {c: 1, c: 2}\n", "the key 'c' is in line 2 already (at line 2, col"),
        ("c.yaml", "a: [{b: 1,\n'b': 2}]\n", "the key 'b' is in line 1 already (at line 2"),
        ("c.json", '{"a": {"b": 1, "b": 2}}', "has the key 'b' twice in one object"),
        (
            "c.toml",
            "a = 1\nb = 2\na = 3\n",
            "is not valid TOML: Cannot overwrite a value (at line 3",
        ),
        ("c.yaml", "a: " + 5_000 * "[" + 5_000 * "]", "is nested too deeply"),
        ("c.json", '{"a": ' + 200_000 * "[" + 200_000 * "]" + "}", "is nested too deeply"),
        ("c.ini", "", "is not one of .toml, .yaml, .yml, .json"),
        ("c.yaml", "a: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_place(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(tmp_path / name, path="store")
    assert str(caught.value).startswith(f"store: {tmp_path / name} ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merged_keys_of_yaml_may_be_replaced(tmp_path):
    text = "x: &x {a: 1}\no: {i: &y {<<: *x, a: 2}}\nz: {<<: *y, a: 3}\n1: {1: a, '1': b}\n"
    (tmp_path / "c.yaml").write_text(text.replace("1: {1", "k: {1"))
    assert read_config_file(tmp_path / "c.yaml") == {
        "x": {"a": 1},
        "o": {"i": {"a": 2}},
        "z": {"a": 3},
        "k": {1: "a", "1": "b"},
    }


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_config_file(tmp_path / "c.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
        read_config_file(tmp_path / "b.toml")
