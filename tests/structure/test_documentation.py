"""Whatever the documents and docstrings show is run, as it stands.

Each document's Python blocks share one namespace and run in order, in a folder that looks like a
checkout with a text `notes.txt` beside it, and is thrown away. Docstring examples know `ktx`,
`keras`, `ops`, `np` and the names of the public module they stand in; `...` in an expected output
stands for anything, and a shape prints as a tuple on every backend.
"""

import doctest
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tx
from tests.structure.surface import listed, members, public_modules, public_objects

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = ["README.md", "benchmarks/README.md", "examples/README.md", "saved_models/README.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"sh", "bash", "shell", "console"}
NAMES = {"ktx": keras_tx, "keras": keras, "ops": keras.ops, "np": np}
DOCTEST_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class OutputChecker(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        shape = re.compile(r"(?:TensorShape|torch\.Size)\(\[([^]]*)\]\)")
        got = shape.sub(lambda match: str(tuple(eval(f"[{match.group(1)}]"))), got)
        return super().check_output(want, got, optionflags)


def blocks(text, languages):
    """(line, source) of each fenced block in one of the languages."""
    return [
        (text[: match.start(2)].count("\n") + 1, match.group(2))
        for match in FENCE.finditer(text)
        if match.group(1) in languages
    ]


def commands(text):
    """The shell blocks without the make targets, which would run the tests within the tests."""
    kept = []
    for line, block in blocks(text, SHELLS):
        lines = [re.sub(r"^\$ ", "", row) for row in block.splitlines()]
        lines = [row for row in lines if row.strip() and not re.match(r"\s*(make\b|#)", row)]
        if lines:
            kept.append((line, "\n".join(lines)))
    return kept


def run_python(sources, namespace, filename):
    for line, source in sources:
        # Empty lines before it give tracebacks the document's line numbers.
        exec(compile("\n" * (line - 1) + source, filename, "exec"), namespace)


def existing(documents):
    return [name for name in documents if (ROOT / name).exists()]


DOCUMENT_COMMANDS = [
    pytest.param(name, line, command, id=f"{name}:{line}")
    for name in existing(DOCUMENTS)
    for line, command in commands((ROOT / name).read_text())
]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("saved_models", "build"):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "saved_models").mkdir()
    (tmp_path / "notes.txt").write_text((ROOT / "LICENSE").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", existing(DOCUMENTS))
def test_python_blocks(name, checkout):
    text = (ROOT / name).read_text()
    run_python(blocks(text, {"python"}), {"__name__": "__document__"}, name)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="a command is the same on every backend, or names its own: once is enough",
)
@pytest.mark.parametrize(("name", "line", "command"), DOCUMENT_COMMANDS)
def test_commands(name, line, command, checkout):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # `pip install` builds the metadata and resolves against what is installed; no more.
        "PIP_DRY_RUN": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
    }
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{name}:{line}\n{command}\n{result.stdout}"


def documented():
    """{path: docstring} of the public modules and objects, and of the objects' own members."""
    found = {module.__name__: module.__doc__ for module in public_modules()}
    for path, value in public_objects().items():
        found[path] = value.__doc__
        if inspect.isclass(value):
            for name, member in members(value).items():
                found[f"{path}.{name}"] = member.__doc__
    return {path: inspect.cleandoc(text) for path, text in found.items() if text}


def names_for(path):
    """What an example may use without an import."""
    around = [m for m in public_modules() if f"{path}.".startswith(f"{m.__name__}.")]
    module = max(around, key=lambda m: len(m.__name__))
    return {**NAMES, **{name: getattr(module, name) for name in listed(module)}}


EXAMPLES = {
    path: text for path, text in documented().items() if ">>>" in text or "```python" in text
}


@pytest.mark.parametrize("path", sorted(EXAMPLES))
def test_docstring_examples(path, checkout):
    text = EXAMPLES[path]
    fenced = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    run_python(
        [(1, textwrap.dedent(source)) for _, source in fenced.findall(text) if ">>>" not in source],
        names_for(path),
        path,
    )
    # A closing fence is no expected output.
    plain = re.sub(r"^ *```.*$", "", text, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(plain, names_for(path), path, path, 0)
    report = []
    doctest.DocTestRunner(OutputChecker(), optionflags=DOCTEST_OPTIONS).run(test, out=report.append)
    assert not report, "".join(report)


def public_layers():
    return [
        path
        for path, value in public_objects().items()
        if inspect.isclass(value) and issubclass(value, keras.Layer)
    ]


def test_every_layer_and_model_shows_an_example():
    missing = [path for path in public_layers() if path not in EXAMPLES]
    assert not missing, f"no example in the docstring: {missing}"


def test_commands_are_found():
    text = "```sh\nmake test\n# why\n$ python a.py\n```\n```text\nrm -rf x\n```\n"
    assert commands(text) == [(2, "python a.py")]
    assert not any("make " in param.values[2] for param in DOCUMENT_COMMANDS)
