"""Imports go one way. Those inside functions count too, and relative ones are resolved."""

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "keras_tx"

# Subpackage: the other subpackages that it may import.
LAYERS_AND_BELOW = {"layers", "ops", "kernels"}
MODELS_AND_BELOW = {"models", "training", "decoding", "data"} | LAYERS_AND_BELOW
MAY_IMPORT = {
    "kernels": set(),
    "ops": {"kernels"},
    "layers": {"ops", "kernels"},
    "training": LAYERS_AND_BELOW,
    "decoding": {"ops", "kernels"},
    "models": {"training", "decoding", "data"} | LAYERS_AND_BELOW,
    "data": {"ops"},
    "export": MODELS_AND_BELOW | {"data"},
    "weights": MODELS_AND_BELOW,
    "analysis": MODELS_AND_BELOW,
    "serving": MODELS_AND_BELOW | {"export"},
}
# Below everything: anybody may import them, they import nothing of the package.
ANYWHERE = ("keras_tx.version", "keras_tx.configurable", "keras_tx.integers")
# (module, subpackage above it): why. Only inside a function.
UPWARD = {
    ("keras_tx.models.model", "export"): "Model.export writes what publish writes.",
}

BACKENDS = {"tensorflow", "tensorflow_text", "jax", "jaxlib", "torch"}
MAY_IMPORT_BACKENDS = {"kernels", "export", "data"}
NEVER_AT_THE_TOP = {"keras_nlp", "keras_hub", "tensorflow_datasets", "matplotlib"}
# Oracles of the tests.
NEVER = {"transformers", "timm"}


class Import(NamedTuple):
    module: str  # the importing module
    target: str  # the full name imported
    line: int
    local: bool  # inside a function

    def __str__(self):
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path, root=ROOT):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source, module, is_package):
    """Every import in a module's source."""
    found = []

    def visit(node, local):
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, node.lineno, local) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            # `from keras_tx import layers` imports keras_tx.layers, if there is such a module.
            found.extend(
                Import(module, f"{base}.{alias.name}", node.lineno, local) for alias in node.names
            )
        inside = local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), False)
    return found


def subpackage(name):
    """`layers` for keras_tx.layers and all in it; None for keras_tx itself and other packages."""
    parts = name.split(".")
    if parts[0] != "keras_tx" or len(parts) == 1:
        return None
    return parts[1]


def problems(record, upward=UPWARD):
    """What is wrong with one import, as text, or None."""
    own, target = subpackage(record.module), record.target
    top = target.partition(".")[0]
    if target == "keras.src" or target.startswith("keras.src."):
        return f"{record}: keras.src is private"
    if top in NEVER:
        return f"{record}: it belongs in the tests"
    if top in NEVER_AT_THE_TOP and not record.local:
        return f"{record} at the top: it is slow, import it where it is used"
    if top in BACKENDS and own not in MAY_IMPORT_BACKENDS:
        return f"{record}: a backend belongs in {', '.join(sorted(MAY_IMPORT_BACKENDS))}"
    if top != "keras_tx" or own is None or target.startswith(ANYWHERE):
        return None
    if own not in MAY_IMPORT:
        return f"{record.module}: {own} has no place in the order of imports"
    other = subpackage(target)
    if other not in MAY_IMPORT:
        return f"{record}: import the subpackage that owns the name"
    if other == own or other in MAY_IMPORT[own]:
        return None
    if (record.module, other) in upward:
        return None if record.local else f"{record} at the top: an upward import is local"
    return f"{record}: {own} stands below {other} or beside it"


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.fixture(scope="module")
def records():
    return [
        record
        for path in SOURCES
        for record in imports_of(path.read_text(), module_name(path), path.name == "__init__.py")
    ]


def test_imports_go_one_way(records):
    found = [problem for record in records if (problem := problems(record))]
    assert not found, "\n".join(found)


def test_every_upward_import_is_still_made(records):
    made = {(record.module, subpackage(record.target)) for record in records}
    modules = {module_name(path) for path in SOURCES}
    stale = [pair for pair in UPWARD if pair[0] in modules and pair not in made]
    assert not stale, f"listed, and not made any more: {stale}"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_no_assert_and_no_loose_end(path):
    source = path.read_text()
    tree = ast.parse(source)
    asserts = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not asserts, f"assert at lines {asserts}: raise a ValueError that says what to do"
    private = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "src"
        and isinstance(node.value, ast.Name)
        and node.value.id == "keras"
    ]
    assert not private, f"keras.src at lines {private}: it is private"
    loose = [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
        and re.search(r"\b(TODO|FIXME|XXX)\b", token.string)
    ]
    assert not loose, f"loose ends at lines {loose}"


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("keras_tx.ops.masks", "from ..layers import Layer", "ops stands below layers"),
        ("keras_tx.ops.masks", "def f():\n    from ..layers import x", "ops stands below layers"),
        ("keras_tx.layers.x", "from .. import models", "layers stands below models"),
        ("keras_tx.layers.x", "from keras_tx import GPT", "the subpackage that owns"),
        ("keras_tx.layers.x", "import jax.numpy as jnp", "a backend belongs"),
        ("keras_tx.data.x", "from keras_tx.layers import x", "data stands below layers"),
        ("keras_tx.data.x", "import tensorflow_datasets as tfds", "slow"),
        ("keras_tx.ops.x", "from keras.src import backend", "private"),
        ("keras_tx.ops.x", "from keras import src", "private"),
        ("keras_tx.models.model", "from keras_tx.export import publish", "upward import is local"),
        ("keras_tx.other.x", "from ..ops import masks", "no place in the order"),
        ("keras_tx.ops.masks", "from . import rotary", None),
        ("keras_tx.ops.masks", "from ..version import __version__", None),
        ("keras_tx.models.gpt", "from ..layers.layer import Layer", None),
        ("keras_tx.models.model", "def f():\n    from ..export import publish", None),
        ("keras_tx.data.x", "def f():\n    import keras_nlp", None),
        ("keras_tx.weights.x", "def f():\n    import transformers", "belongs in the tests"),
        ("keras_tx.weights.x", "import torch", "a backend belongs"),
        ("keras_tx.weights.x", "from keras_tx.models.gpt import GPT", None),
        ("keras_tx.kernels.jax", "import jax", None),
    ],
)
def test_the_rules_catch_what_they_should(module, line, complaint):
    (record,) = imports_of(line, module, is_package=False)
    found = problems(record)
    assert (found is None) if complaint is None else (complaint in (found or "")), found
