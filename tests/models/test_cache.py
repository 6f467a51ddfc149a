"""Cached equals uncached (law 4), and nothing later is ever seen (law 3)."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx import kernels, layers
from keras_tx.ops.attention import choose_path
from keras_tx.ops.attention_mask import AttentionMask
from tests.models import cache_table, paired_cache_table, tools

LENGTHS = np.array([1, 3, 7, 5, 2], "int32")
STEPS = 6


@pytest.fixture(scope="module", params=sorted(tools.GPT_VARIANTS))
def gpt(request):
    # With a padding id, which hides itself from the others in the cache as it does in `call`.
    return tools.make_gpt(request.param, pad_token_id=3 if request.param != "none" else None)


@pytest.fixture(scope="module")
def forward(gpt):
    return tools.forward(gpt)


def stepwise_logits(gpt, prompts, lengths, following):
    """Logits (B, steps + 1, V) after the prompts and after each following token."""

    def run(prompts, lengths, following):
        logits, state = gpt.start({"token_ids": prompts, "lengths": lengths}, STEPS)
        return cache_table.stepwise(gpt, logits, state, following)

    return cache_table.call(gpt, run, prompts, lengths, following)


@pytest.mark.parametrize("gpt", ["none", "post_norm", "list", "biases"], indirect=True)
def test_each_cached_step_gives_the_logits_of_the_whole_sequence(gpt, forward):
    whole = tools.tokens(len(LENGTHS), tools.LENGTH)
    prompts = np.where(np.arange(8) < LENGTHS[:, None], whole[:, :8], 4)
    following = np.stack([row[n : n + STEPS] for row, n in zip(whole, LENGTHS, strict=True)])
    cached = stepwise_logits(gpt, prompts.astype("int32"), LENGTHS, following)
    uncached = forward(whole)
    for row, length in enumerate(LENGTHS):
        read = whole[row, length - 1 : length + STEPS]
        real = read != gpt.pad_token_id  # what padding itself sees is nobody's business
        tools.assert_close(cached[row][real], uncached[row, length - 1 : length + STEPS][real])


@pytest.mark.parametrize("name", cache_table.VARIANTS)
def test_the_table_of_variants(name):
    difference, slots = cache_table.row(name)
    assert difference <= cache_table.TOLERANCE
    if "window" in name and "wide" not in name:
        assert min(slots) <= 8  # of prompts of up to 84 tokens


@pytest.mark.parametrize("name", paired_cache_table.VARIANTS)
def test_the_table_of_decoders_that_read_a_source(name):
    assert paired_cache_table.row(name) <= cache_table.TOLERANCE


RINGS = ["window", "window, global", "window, ALiBi", "window, padding id"]


@pytest.mark.parametrize("name", RINGS)
def test_a_prompt_longer_than_a_ring_may_be_read_at_once(name):
    assert cache_table.row(name, chunk=512)[0] <= cache_table.TOLERANCE


def test_chunks_may_be_read_in_tiles(monkeypatch):
    monkeypatch.setattr(kernels, "MANY_SCORES", 32 * cache_table.LENGTH)
    assert cache_table.row("rotary", chunk=32)[0] <= cache_table.TOLERANCE
    mask = AttentionMask(causal=True, offset=ops.zeros((1,), "int32"))
    path = choose_path((5, 2, 32, 4), (5, 2, cache_table.LENGTH, 4), mask)
    assert path.name in ("tiled", "fused")


@pytest.mark.parametrize("name", ["rotary", *RINGS])
def test_tokens_that_are_taken_back_were_never_read(name):
    model = cache_table.make(name)
    assert cache_table.error(model, *cache_table.taken_back(model)) <= cache_table.TOLERANCE


@pytest.mark.parametrize(
    "name, dtype, tolerance", [("rotary", "float16", 2e-3), ("window, global", "bfloat16", 2e-2)]
)
def test_a_cache_of_half_precision_is_near(name, dtype, tolerance, monkeypatch):
    """Each key and value is rounded once: to 11 bits, or 8."""
    model = cache_table.make(name)
    monkeypatch.setattr(model, "cache_dtype", dtype)
    assert keras.models.clone_model(model).cache_dtype == dtype
    _, state = model.start({"token_ids": tools.tokens(5, 3), "lengths": np.full(5, 3)}, 1)
    kept = {keras.backend.standardize_dtype(x.dtype) for pair in state["caches"] for x in pair}
    assert kept == {dtype}
    assert 1e-5 < cache_table.error(model, cache_table.cached(model)[0]) < tolerance


def test_a_cache_holds_floats():
    with pytest.raises(ValueError, match="`cache_dtype` must be a float's name.*'int8'"):
        tools.make_gpt(cache_dtype="int8")


def test_sizes_that_tensorflow_does_not_know(backend):
    if backend != "tensorflow":
        return  # the others trace with known sizes alone
    import tensorflow as tf

    model = cache_table.make("window, padding id")
    model.prefill_chunk = cache_table.CHUNK
    ids, lengths = tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None,), "int32")

    @tf.function(input_signature=[ids, lengths, ids], autograph=False)
    def run(token_ids, lengths, following):
        logits, state = model.start({"token_ids": token_ids, "lengths": lengths}, cache_table.NEW)
        kept = [logits]
        for index in range(2):
            logits, state = model.step(following[:, index], state)
            kept.append(logits)
        return tf.stack(kept, axis=1)

    inputs, following = cache_table.prompts_and_following()
    logits = run(inputs["token_ids"], inputs["lengths"], following).numpy()
    assert cache_table.error(model, logits, np.tile(np.arange(3), (5, 1))) <= 1e-5
    short = run([[5, 6, 7]], [3], [[1, 2]]).numpy()  # all in one chunk
    alone, _ = model.start({"token_ids": np.array([[5, 6, 7]]), "lengths": np.array([3])}, 1)
    tools.assert_close(short[:, 0], alone)


def test_a_later_token_changes_nothing_before_it(forward):
    token_ids = tools.tokens(len(LENGTHS), tools.LENGTH)
    changed = token_ids.copy()
    changed[:, 7:] = (changed[:, 7:] + 5) % tools.VOCABULARY
    one, other = forward(token_ids), forward(changed)
    tools.assert_close(one[:, :7], other[:, :7])
    assert np.abs(one[:, 7] - other[:, 7]).max() > 1e-2


def test_all_later_tokens_see_an_earlier_one_unless_a_window_hides_it(gpt, forward):
    token_ids = tools.tokens(1, tools.LENGTH)
    changed = token_ids.copy()
    changed[:, 0] = (changed[:, 0] + 5) % tools.VOCABULARY
    moved = np.abs(forward(np.repeat(token_ids, 5, 0)) - forward(np.repeat(changed, 5, 0)))
    moved = moved[0].max(axis=-1)
    windows = [block.attention.window for block in gpt.blocks]
    if None in windows:
        assert (moved > 1e-6).all()
    else:  # two layers with a window of 3 reach 4 tokens back
        reach = sum(window - 1 for window in windows)
        assert (moved[: reach + 1] > 1e-6).all() and not moved[reach + 1 :].any()


def test_dropout_keeps_the_order():
    gpt = tools.make_gpt(dropout=0.4, num_layers=1)
    seeds = [v for v in gpt.non_trainable_variables if "seed" in v.path]
    before = [ops.convert_to_numpy(seed.value) for seed in seeds]

    def trained(token_ids):
        keras.utils.set_random_seed(1)
        for seed, value in zip(seeds, before, strict=True):
            seed.assign(value)
        return ops.convert_to_numpy(gpt(token_ids, training=True))

    token_ids = tools.tokens(1, 7)
    changed = token_ids.copy()
    changed[:, 5:] = (changed[:, 5:] + 5) % tools.VOCABULARY
    one, other = trained(token_ids), trained(changed)
    tools.assert_close(one[:, :5], other[:, :5])
    assert np.abs(one - ops.convert_to_numpy(gpt(token_ids, training=False))).max() > 1e-2


def test_a_vit_sees_every_patch_from_every_patch():
    vit = tools.make_vit(num_layers=1)
    forward = tools.forward(vit)
    image = tools.images(1)
    logits = forward(image)
    for place in np.ndindex(3, 3):  # a pixel of each patch
        changed = image.copy()
        changed[0, 2 * place[0], 3 * place[1]] ^= 255
        assert np.abs(forward(changed) - logits).max() > 1e-4


@pytest.mark.parametrize(
    "scaling",
    [
        layers.DynamicScaling(4.0, 5),
        layers.LongRopeScaling(4.0, 5, short_factors=[1.0, 1.3], long_factors=[1.5, 4.0]),
    ],
    ids=["dynamic", "longrope"],
)
def test_a_rotation_that_depends_on_a_length_takes_each_rows_own(scaling):
    """In a batch as alone, and as without a cache when it is told what each row may grow to."""
    position = layers.RotaryEncoding(scaling=scaling)
    attention = layers.MultiHeadSelfAttention(2, 4, causal=True, position=position)
    gpt = tools.make_gpt("list", block=layers.TransformerBlock(attention=attention))
    prompts = [tools.tokens(n, seed=n).tolist() for n in (2, 7)]
    new = gpt.generate(prompts, max_new_tokens=STEPS)
    assert new == [gpt.generate(prompt, max_new_tokens=STEPS) for prompt in prompts]
    for prompt, added in zip(prompts, new, strict=True):
        whole = np.array([[*prompt, *added]], "int32")
        logits = {
            length: ops.convert_to_numpy(gpt({"token_ids": whole, "lengths": np.array([length])}))
            for length in (5, len(prompt) + STEPS)
        }
        chosen = logits[len(prompt) + STEPS][0, len(prompt) - 1 : -1].argmax(-1)
        assert chosen.tolist() == added
        assert np.abs(logits[5] - logits[len(prompt) + STEPS]).max() > 1e-3
