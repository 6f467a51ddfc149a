"""Generation, greedy and by beams, against transformers, keras-hub and what memory allows.

    python benchmarks/generation.py
    python benchmarks/generation.py --only "small b1"

A prompt of 32 tokens, 128 new ones, no end token, float32, random weights. Small: 4 layers of 256,
4 heads, 2,048 ids; gpt2: GPT-2 small, 124 million parameters. First calls, which trace and compile,
are a column of their own, in wall time.

transformers: `generate`, sdpa, its default cache. keras-hub: `GPT2CausalLM`, greedy. Served: what
`export` writes, in a TensorFlow session with XLA off, as a server runs it. Memory floor: the bytes
of weights and cache that every new token must read, at the speed of the fastest matrix-vector
product over as many bytes of weights that numpy or PyTorch has, measured then and there.
"""

import harness

PROMPT, NEW, CONTEXT = 32, 128, 1024
SIZES = {
    "small": {"vocabulary": 2048, "layers": 4, "width": 256, "heads": 4},
    "gpt2": {"vocabulary": 50257, "layers": 12, "width": 768, "heads": 12},
}
PEER, FLOOR = "transformers", "memory floor"
# name, backend, `jit_compile`
FORMS = [
    ("TensorFlow graph", "tensorflow", False),
    ("TensorFlow jit", "tensorflow", True),
    ("JAX", "jax", True),
    ("PyTorch", "torch", False),
]
# Ratios of time to transformers', by case and form.
WANTED = {
    "small b1": {"TensorFlow jit": 0.33, "JAX": 0.33, "PyTorch": 1.1},
    "small b8": {"TensorFlow jit": 0.4, "JAX": 0.4, "PyTorch": 1.1},
    "gpt2 b1": {"TensorFlow graph": 0.78, "PyTorch": 1.1},
    "gpt2 b8": {"TensorFlow graph": 0.8, "PyTorch": 1.1},
    "small b1, beam 4": {"TensorFlow jit": 0.5, "JAX": 0.5, "PyTorch": 1.1},
}


def subjects():
    sizes = [(size, batch, 1) for size in SIZES for batch in (1, 8)] + [("small", 1, 4)]
    return [row for sizes in sizes for row in of_case(*sizes)]


def of_case(size, batch, beams):
    case = f"{size} b{batch}" + (f", beam {beams}" if beams > 1 else "")
    options = {"size": size, "batch": batch, "beams": beams}

    def subject(name, backend, targets=None, **more):
        return harness.Subject(case, name, backend, {**options, **more}, targets or {})

    rows = [] if beams > 1 else [subject(FLOOR, "torch", kind="floor")]
    rows.append(subject(PEER, "torch", kind="transformers"))
    for name, backend, jit in FORMS:
        if beams == 1:  # keras-hub's own beams are slower still, and give one text
            rows.append(subject(f"keras-hub, {name}", backend, kind="hub", jit=jit))
    for name, backend, jit in FORMS:
        targets = {PEER: WANTED[case].get(name)}
        if (case, name) in (("gpt2 b1", "TensorFlow graph"), ("gpt2 b1", "JAX")):
            targets[FLOOR] = 1 / 0.8
        rows.append(subject(f"ours, {name}", backend, targets, kind="ours", jit=jit))
    if beams == 1:
        targets = {PEER: None, "ours, TensorFlow graph": 1.1}
        rows.append(subject("ours, served", "tensorflow", targets, kind="served"))
    return rows


def measure(subject, quick):
    options = subject.options
    if options["kind"] == "floor":
        return floor(options, quick)
    new = 3 if quick else NEW
    run = PREPARE[options["kind"]](options, new)
    return harness.timed(run, 1 if quick or options["size"] == "gpt2" else 7)


def prompts(options):
    import numpy as np

    vocabulary = SIZES[options["size"]]["vocabulary"]
    shape = (options["batch"], PROMPT)
    return np.random.default_rng(0).integers(0, vocabulary, shape).astype("int32")


def our_model(options):
    import keras

    import keras_tx as ktx

    keras.utils.set_random_seed(0)
    size = SIZES[options["size"]]
    return ktx.GPT(
        size["vocabulary"],
        num_layers=size["layers"],
        hidden_dim=size["width"],
        num_heads=size["heads"],
        max_sequence_length=CONTEXT,
        activation="gelu_tanh",
    )


def ours(options, new):
    import keras_tx as ktx

    model, ids = our_model(options), prompts(options)
    model.compile(jit_compile=options["jit"])
    beams = options["beams"]
    strategy = ktx.decoding.Beam(beams) if beams > 1 else "greedy"

    def run():
        return checked(model.generate(ids, strategy=strategy, max_new_tokens=new), options, new)

    return run


def served(options, new):
    """The signature `token_ids` in a session with XLA off."""
    import ctypes
    import pathlib
    import tempfile

    import numpy as np
    import tensorflow as tf

    folder = tempfile.TemporaryDirectory()  # until the process ends
    our_model(options).export(folder.name + "/model", max_new_tokens=new)
    library = ctypes.CDLL(str(pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"))
    library._ZN10tensorflow21DisableXlaCompilationEv()
    ids = prompts(options)
    given = {"token_ids": ids, "lengths": np.full(len(ids), PROMPT, "int32")}
    held = []

    def run():
        if not held:  # loading is part of the first call
            session = tf.compat.v1.Session(graph=tf.Graph())
            loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder.name + "/model")
            held.extend([session, loaded.signature_def["token_ids"], folder])
        session, signature, _ = held
        feeds = {signature.inputs[name].name: value for name, value in given.items()}
        result = session.run(signature.outputs["token_ids"].name, feeds)
        return checked(result, options, new)

    return run


def transformers(options, new):
    import sys

    sys.modules.setdefault("torchvision", None)  # PyPI's does not fit the CPU build of torch
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = SIZES[options["size"]]
    config = GPT2Config(
        vocab_size=size["vocabulary"],
        n_positions=CONTEXT,
        n_embd=size["width"],
        n_layer=size["layers"],
        n_head=size["heads"],
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).eval()
    ids = torch.tensor(prompts(options)).long()
    how = {"do_sample": False, "num_beams": options["beams"], "max_new_tokens": new}

    def run():
        with torch.inference_mode():
            result = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **how)
        return checked(result[:, PROMPT:], options, new)

    return run


def hub(options, new):
    import keras
    import keras_hub
    import numpy as np

    keras.utils.set_random_seed(0)
    size = SIZES[options["size"]]
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=size["vocabulary"],
        num_layers=size["layers"],
        num_heads=size["heads"],
        hidden_dim=size["width"],
        intermediate_dim=4 * size["width"],
        max_sequence_length=CONTEXT,
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=options["jit"])
    ids = np.pad(prompts(options), [(0, 0), (0, new)])
    mask = np.broadcast_to(np.arange(PROMPT + new) < PROMPT, ids.shape).astype("int32")

    def run():
        result = model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)
        return checked(result["token_ids"][:, PROMPT:], options, new)

    return run


def checked(ids, options, new):
    shape = (len(ids), len(ids[0]))
    if shape != (options["batch"], new):
        raise ValueError(f"Expected {(options['batch'], new)} new tokens. Received: {shape}")


PREPARE = {"ours": ours, "served": served, "transformers": transformers, "hub": hub}


def floor(options, quick):
    """Seconds to read, for each new token, every weight once and the keys and values so far."""
    import time

    import torch

    torch.set_num_threads(1)
    size, batch = SIZES[options["size"]], options["batch"]
    width, layers = size["width"], size["layers"]
    weights = 12 * width * width * layers + size["vocabulary"] * width
    cache = batch * 2 * layers * width * (PROMPT + NEW / 2)
    tall, row = torch.randn(weights // width, width), torch.randn(width)
    wide, long = tall.T, torch.randn(weights // width)
    products = [
        lambda: torch.mv(tall, row),
        lambda: torch.mv(wide, long),
        lambda: tall.numpy() @ row.numpy(),
        lambda: long.numpy() @ tall.numpy(),
    ]
    seconds = []
    for _ in range(3 if quick else 40):
        for product in products:
            began = time.process_time()
            product()
            seconds.append(time.process_time() - began)
    best = min(seconds) / tall.numel()
    return {"seconds": NEW * (weights + cache) * best, "first_seconds": 0.0, "peak_mb": 0.0}


if __name__ == "__main__":
    harness.main(subjects(), measure, __file__, __doc__.split("\n")[0])
