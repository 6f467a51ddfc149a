"""Tiny random models of transformers: configuration, tensors, inputs and outputs."""

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.cases import CASES, CHANNELS, VOCABULARY, Case


class Reference(NamedTuple):
    case: Case
    model: Any
    config: dict
    state: dict
    inputs: np.ndarray
    outputs: np.ndarray


@cache
def reference(name: str) -> Reference:
    import torch

    case = CASES[name]
    hugging = transformers()
    cls = getattr(hugging, case.model)
    model = randomized(cls(cls.config_class(**case.config)))
    generator = np.random.default_rng(5)
    with torch.no_grad():
        if case.is_decoder:
            inputs = generator.integers(0, VOCABULARY, (3, case.length)).astype("int32")
            outputs = model(torch.tensor(inputs).long()).logits
        else:
            height, width = np.broadcast_to(case.config["image_size"], 2)
            inputs = generator.integers(0, 256, (3, height, width, CHANNELS)).astype("uint8")
            pixels = torch.tensor(inputs).permute(0, 3, 1, 2) / 255
            found = model(pixel_values=(pixels - 0.5) / 0.5)
            outputs = found.logits if hasattr(found, "logits") else found.pooler_output
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    return Reference(case, model, model.config.to_dict(), state, inputs, outputs.numpy())


def transformers():
    """The library, imported without torchvision: PyPI's does not fit the CPU build of torch."""
    sys.modules.setdefault("torchvision", None)
    import transformers

    return transformers


def randomized(model):
    """The model for inference with no bias of 0, no gain of 1, and numbers that are far apart."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    return model.eval()
