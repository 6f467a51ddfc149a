"""The compiled programs of a model, kept for as long as they fit it."""

from collections.abc import Callable, Hashable

MOST = 64


def program(model, key: Hashable, make: Callable):
    """What `make()` returned when it was first called for this key.

    Those of a model that has other variables since, as after `enable_lora` or `quantize`, are
    forgotten: they would hold the old ones. So is what was not used for long: a rule that is a new
    lambda at each call is a new program at each call.
    """
    variables = model.variables
    made_for, programs = model.__dict__.get("_programs", ([], {}))
    if len(made_for) != len(variables) or any(
        a is not b for a, b in zip(made_for, variables, strict=True)
    ):
        programs = {}
        model.__dict__["_programs"] = list(variables), programs
    programs[key] = programs.pop(key) if key in programs else make()  # to the end
    if len(programs) > MOST:
        del programs[next(iter(programs))]
    return programs[key]
