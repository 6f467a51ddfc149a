"""GPT equals transformers' GPT-2 with its weights copied."""

import sys

import numpy as np
import pytest

import keras_tx as ktx
from tests.models import tools


@pytest.fixture(scope="module")
def reference():
    """State dict, ids and logits of a tiny random GPT-2."""
    sys.modules.setdefault("torchvision", None)  # PyPI's does not fit the CPU build of torch
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=13, n_positions=17, n_embd=12, n_layer=2, n_head=3, initializer_range=0.4
    )
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            if parameter.ndim == 1:  # no bias of 0, no gain of 1
                parameter.add_(0.2 * torch.randn_like(parameter))
        ids = tools.tokens(3, 11)
        logits = gpt2(torch.tensor(ids).long()).logits.numpy()
        new = gpt2.generate(torch.tensor(ids).long(), max_new_tokens=6, do_sample=False)
    state = {name: value.numpy() for name, value in gpt2.state_dict().items()}
    return state, ids, logits, new[:, 11:].tolist()


def copy(state, gpt):
    gpt.token_embedding.embeddings.assign(state["transformer.wte.weight"])
    gpt.position_encoding.embeddings.assign(state["transformer.wpe.weight"])
    pairs = [("transformer.ln_f", gpt.output_norm)]
    for index, block in enumerate(gpt.blocks):
        h = f"transformer.h.{index}"
        pairs += [
            (f"{h}.ln_1", block.attention_norm),
            (f"{h}.attn.c_attn", block.attention.query_key_value_dense),
            (f"{h}.attn.c_proj", block.attention.output_dense),
            (f"{h}.ln_2", block.feed_forward_norm),
            (f"{h}.mlp.c_fc", block.feed_forward.inner_dense),
            (f"{h}.mlp.c_proj", block.feed_forward.output_dense),
        ]
    for name, layer in pairs:
        layer.set_weights([state[f"{name}.weight"], state[f"{name}.bias"]])


def test_logits_and_greedy_text(reference):
    state, ids, logits, new = reference
    gpt = ktx.GPT(
        13, 2, 12, 3, max_sequence_length=17, activation="gelu_tanh", layer_norm_epsilon=1e-5
    )
    copy(state, gpt)
    tools.assert_close(gpt.predict(ids, verbose=0), logits, 1e-4)
    assert np.abs(logits).max() > 1
    assert gpt.generate(ids, max_new_tokens=6) == new
