"""The families of models whose configurations and tensors are known."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import keras

from keras_tx.models.gpt import GPT
from keras_tx.models.vit import ViT
from keras_tx.weights import decoder_names, decoders, vision, vision_names
from keras_tx.weights.decoder_names import assign_decoder
from keras_tx.weights.options import Options
from keras_tx.weights.vision_names import assign_vision


class Family(NamedTuple):
    """What is made of a configuration, and how tensors are assigned to it.

    model: The class.
    arguments: Options -> the arguments of its constructor.
    assign: (model, {name: array}) -> None.
    """

    model: type
    arguments: Callable
    assign: Callable


def _decoder(arguments, names):
    return Family(GPT, arguments, partial(assign_decoder, names))


def _tower(arguments, names):
    return Family(ViT, arguments, partial(assign_vision, names))


FAMILIES = {
    "bloom": _decoder(decoders.bloom, decoder_names.BLOOM),
    "gemma2": _decoder(decoders.gemma2, decoder_names.GEMMA2),
    "gpt2": _decoder(decoders.gpt2, decoder_names.GPT2),
    "gpt_neox": _decoder(decoders.gpt_neox, decoder_names.GPT_NEOX),
    "llama": _decoder(decoders.llama, decoder_names.LLAMA),
    "mistral": _decoder(decoders.mistral, decoder_names.LLAMA),
    "phi3": _decoder(decoders.phi3, decoder_names.PHI3),
    "qwen2": _decoder(decoders.qwen2, decoder_names.LLAMA),
    "qwen3": _decoder(decoders.qwen3, decoder_names.QWEN3),
    "clip_vision_model": _tower(vision.clip, vision_names.CLIP),
    "deit": _tower(vision.deit, vision_names.DEIT),
    "dinov2": _tower(vision.dinov2, vision_names.DINOV2),
    "dinov2_with_registers": _tower(
        vision.dinov2_with_registers, vision_names.DINOV2_WITH_REGISTERS
    ),
    "siglip_vision_model": _tower(vision.siglip, vision_names.SIGLIP),
    "vit": _tower(vision.vit, vision_names.VIT),
}


def build(config: dict, **changes) -> keras.Model:
    """A model with random weights from a configuration of transformers.

    Dropout, special ids and the scaling of pixels are not taken from it: they act in training
    alone, or stand in other files. A tower without a classifier (SigLIP's, CLIP's) gives what it
    pools, by a head that `assign` makes the identity.

    Args:
        config: As in `config.json`, with its `model_type`.
        **changes: Arguments of the model's constructor that replace or complete those of the
            configuration, such as `dropout`, `end_token_id` or `pixel_mean`.

    Returns:
        A `GPT` or a `ViT`.

    Raises:
        ValueError: If the family is not known, an option is missing, or one cannot be honoured.

    Example:
        >>> gpt = build({"model_type": "gpt2", "vocab_size": 11, "n_positions": 16, "n_embd": 8,
        ...              "n_layer": 2, "n_head": 2})
        >>> gpt.num_layers
        2
    """
    family = _family(config)
    options = Options(config)
    options.require("quantization_config", None)
    options.require("per_layer_config", None, {})
    return family.model(**{**family.arguments(options), **changes})


def assign(model: keras.Model, state: dict, config: dict):
    """Assigns the tensors of a model of transformers, all of them or, on an error, none.

    Args:
        model: What `build(config)` gave.
        state: {name: array}, with the names of transformers' state dict; whatever `numpy.asarray`
            takes, and has a `shape`.
        config: The configuration that `model` was built from.

    Raises:
        ValueError: If a tensor is missing, has another shape, or is not used.
    """
    _family(config).assign(model, state)


def _family(config) -> Family:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"`model_type` must be one of {', '.join(sorted(FAMILIES))}; of a pair of towers, give "
            f"the configuration of one, such as its `vision_config`. Received: {kind!r}"
        )
    return FAMILIES[kind]
