"""Tiny random models of transformers, and their weights in ours."""

import sys

import numpy as np


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


class State:
    """Reads a state dict by the names of layers below a prefix; checks that all of it is read."""

    def __init__(self, model):
        self.values = {name: value.numpy() for name, value in model.state_dict().items()}
        self.unread = set(self.values)

    def __getitem__(self, name):
        self.unread.discard(name)
        return self.values[name]

    def dense(self, layer, *names, order=None):
        """The kernel and bias of one or more linear layers, side by side."""
        kernel = np.concatenate([self[f"{name}.weight"].T for name in names], axis=-1)
        weights = [kernel]
        if f"{names[0]}.bias" in self.values:
            weights.append(np.concatenate([self[f"{name}.bias"] for name in names]))
        layer.set_weights([w if order is None else w[..., order] for w in weights])

    def norm(self, layer, name, offset=0.0):
        """A gain, to which Gemma adds 1, and a bias if there is one."""
        weights = [self[f"{name}.weight"] + offset]
        if f"{name}.bias" in self.values:
            weights.append(self[f"{name}.bias"])
        layer.set_weights(weights)
