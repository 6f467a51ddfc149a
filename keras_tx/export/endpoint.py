"""One signature of an artefact, with the request that tries it out."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Endpoint:
    """A named signature: what it computes, what it takes, and how to tell that it is right.

    Args:
        name: The signature's name.
        function: Takes the inputs by name, returns a dict of tensors.
        inputs: `{name: tf.TensorSpec}`, the batch first.
        sample: A request as `{name: array}`.
        check: Takes the reply to `sample` as `{name: array}`; raises RuntimeError when it is not
            what the model says.
    """

    name: str
    function: Callable[..., dict[str, Any]]
    inputs: dict[str, Any]
    sample: dict[str, Any]
    check: Callable[[dict[str, Any]], None]
