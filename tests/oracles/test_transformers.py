"""GPT and ViT equal the models of transformers, by their configurations and tensors alone."""

import keras
import pytest

import keras_tx as ktx
from tests.models import tools
from tests.oracles.cases import CASES
from tests.oracles.parity import measure, ours, rebuilt, run
from tests.oracles.reference import reference


@pytest.mark.parametrize("name", CASES)
def test_outputs(name):
    row = measure(name)
    assert row.holds, row
    assert row.scale > 0.5


once = pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="what transformers does is the same on every backend: once is enough",
)


def rope_of(name, **changes):
    return {"rope_parameters": {**reference(name).config["rope_parameters"], **changes}}


# Options that a row is there for, changed.
OTHERWISE = {
    **{name: {"rope_type": "default"} for name, case in CASES.items() if case.scales_positions},
    "Llama, dynamic rope": {"max_position_embeddings": 64},  # it acts on longer rows alone
    "GPT-NeoX, a quarter turned": {"partial_rotary_factor": 0.5},
    "GPT-NeoX, a quarter turned, in series": {"use_parallel_residual": True},
    "Mistral, window 5": {"sliding_window": None},
    "Qwen2, windows from layer 1": {"layer_types": ["full_attention"] * 2},
    "Gemma 2": {"attn_logit_softcapping": None},
}


@once
@pytest.mark.parametrize("name", OTHERWISE)
def test_the_option_is_felt(name):
    changes = OTHERWISE[name]
    if changes.keys() & {"rope_type", "partial_rotary_factor"}:
        changes = rope_of(name, **changes)
    row = measure(name, rebuilt(reference(name), changes))
    assert row.difference > 100 * row.limit, row


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX, a quarter turned", "Bloom", "Gemma 2"])
def test_greedy_text(name):
    import torch

    found = reference(name)
    ids = torch.tensor(found.inputs).long()
    with torch.no_grad():
        new = found.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),  # no id stands for padding
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
        )
    expected = new[:, found.case.length :].tolist()
    assert ours(name).generate(found.inputs, max_new_tokens=6) == expected


@once
def test_hidden_states_of_a_tower():
    import torch

    found = reference("SigLIP, vision")
    pixels = torch.tensor(found.inputs).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        hidden = found.model(pixel_values=(pixels - 0.5) / 0.5).last_hidden_state.numpy()
    tools.assert_close(ours("SigLIP, vision").encode(found.inputs), hidden)


def test_attention_pooling_by_name_is_that_of_the_layer():
    found, tower = reference("SigLIP, vision"), ours("SigLIP, vision")
    by_name = ktx.ViT(
        24,
        2,
        24,
        3,
        7,
        image_size=6,
        patch_size=2,
        num_channels=2,
        pooling="attention",
        activation="gelu_tanh",
        layer_norm_epsilon=1e-3,
    )
    by_name.set_weights(tower.get_weights())
    tools.assert_close(tools.forward(by_name)(found.inputs), found.outputs)


@once
@pytest.mark.parametrize("name", ["ViT", "DINOv2", "DINOv2, gated", "Llama, biases, tied"])
def test_saved_files_have_other_names(name, tmp_path):
    """Those of the releases that the published files were written by."""
    from safetensors.numpy import load_file

    found = reference(name)
    found.model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    assert state.keys() != found.state.keys()
    model = rebuilt(found._replace(state=state), {})
    tools.assert_close(run(model, found), found.outputs)
