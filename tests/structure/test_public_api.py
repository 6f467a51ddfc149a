import difflib

import pytest

from tests.structure.surface import PINNED, describe, listed, public_modules, public_objects


def test_names_and_signatures_are_pinned():
    pinned = PINNED.read_text() if PINNED.exists() else ""
    difference = "\n".join(
        difflib.unified_diff(
            pinned.splitlines(), describe().splitlines(), "pinned", "now", n=0, lineterm=""
        )
    )
    if difference:
        pytest.fail(
            "The public surface differs from tests/public_api.txt. If that is meant, run "
            f"`make public-api`, and note it in CHANGELOG.md.\n{difference}",
            pytrace=False,
        )


def test_every_public_module_lists_its_names():
    for module in public_modules():
        assert listed(module), f"{module.__name__} has no names in __all__"
        assert len(set(module.__all__)) == len(module.__all__), module.__name__
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        assert not missing, f"{module.__name__}.__all__ names what is not there: {missing}"


def test_every_public_object_says_what_it_is():
    missing = [path for path, value in public_objects().items() if not vars_doc(value)]
    assert not missing, f"no docstring of its own: {missing}"


def vars_doc(value):
    # A class without a docstring inherits none through its own dictionary.
    return getattr(value, "__dict__", {}).get("__doc__") or (
        not isinstance(value, type) and value.__doc__
    )
