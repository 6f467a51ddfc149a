"""The public surface of keras_tx: what `__all__` of the package and its public modules names.

python tests/structure/surface.py            prints it
python tests/structure/surface.py --update   rewrites tests/public_api.txt
"""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import keras_tx

PINNED = Path(__file__).resolve().parent.parent / "public_api.txt"
# Keras' own protocol, the same for every layer.
PROTOCOL = {
    "build",
    "compute_mask",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_config",
}


def listed(module):
    """Its `__all__`; that there is one is a test of its own."""
    return getattr(module, "__all__", ())


def public_modules(module=keras_tx):
    """The module and every module of this package that `__all__` reaches, inner ones first."""
    modules = []
    for name in listed(module):
        value = getattr(module, name)
        if isinstance(value, ModuleType) and value.__name__.startswith("keras_tx."):
            modules += public_modules(value)
    return [*modules, module]


def public_names():
    """(path, object) for each public name that is no module; the innermost path comes first."""
    return [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in public_modules()
        for name in listed(module)
        if not isinstance(getattr(module, name), ModuleType)
    ]


def public_objects():
    """{path: object}, each function and class once, under its innermost path."""
    seen, objects = set(), {}
    for path, value in public_names():
        if callable(value) and id(value) not in seen:
            seen.add(id(value))
            objects[path] = value
    return objects


def public_classes():
    return {path: value for path, value in public_objects().items() if inspect.isclass(value)}


def members(cls):
    """{name: attribute} of the public methods and properties that keras_tx itself gives a class."""
    found = {}
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] == "keras_tx":
            for name, value in vars(owner).items():
                if not name.startswith("_") and name not in PROTOCOL:
                    found.setdefault(name, value)
    return {
        name: value
        for name, value in sorted(found.items())
        if isinstance(value, (property, classmethod, staticmethod)) or inspect.isfunction(value)
    }


def signature(function):
    """Names, order and defaults. Annotations are left out: they print as each Python likes."""
    try:
        bare = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in bare.parameters.values()
    ]
    text = str(bare.replace(parameters=parameters, return_annotation=bare.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def describe():
    """The surface as text, one name a line."""
    lines, first_path = [], {}
    for path, value in public_names():
        if not callable(value):
            lines.append(f"{path}: {type(value).__name__}")
        elif id(value) in first_path:
            lines.append(f"{path} = {first_path[id(value)]}")
        else:
            first_path[id(value)] = path
            lines.append(path + signature(value))
            if inspect.isclass(value):
                for name, member in members(value).items():
                    suffix = (
                        ": property"
                        if isinstance(member, property)
                        else signature(getattr(member, "__func__", member))
                    )
                    lines.append(f"{path}.{name}{suffix}")
    return "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    if "--update" in sys.argv[1:]:
        PINNED.write_text(describe())
    else:
        print(describe(), end="")
