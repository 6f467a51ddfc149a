"""What a draft gains, or costs: the same model with and without one, trained on the same text.

    python benchmarks/speculative.py

Two models of Python's language reference (the data of `examples/write_reference.py`): four layers
of 256, and a draft of two layers of 128, a sixth of the weights. They are trained first, for some
minutes, or read from the folder in SPECULATIVE_WEIGHTS. 16 prompts of the held-out text, 64 new
tokens, greedy, float32. Seconds are CPU seconds of one pinned core for all prompts.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import harness

REFERENCE = Path(__file__).resolve().parent.parent / "examples/datasets/python_reference"
SIZES = {
    "model": {"num_layers": 4, "hidden_dim": 256, "num_heads": 4},
    "draft": {"num_layers": 2, "hidden_dim": 128, "num_heads": 2},
}
EPOCHS = {"model": 6, "draft": 8}
PROMPTS, PROMPT, NEW = 16, 32, 64
FORMS = [
    ("TensorFlow graph", "tensorflow", False),
    ("TensorFlow jit", "tensorflow", True),
    ("JAX", "jax", True),
    ("PyTorch", "torch", False),
]
WEIGHTS = "SPECULATIVE_WEIGHTS"


def subjects():
    rows = []
    for batch in (1, 8):
        for name, backend, jit in FORMS:
            options = {"batch": batch, "jit": jit}
            case = f"b{batch}, {name}"
            rows.append(harness.Subject(case, "greedy", backend, {**options, "guesses": 0}))
            for guesses in (2, 4):
                subject = f"{guesses} guesses"
                more = {**options, "guesses": guesses}
                rows.append(harness.Subject(case, subject, backend, more, {"greedy": None}))
    return rows


def data():
    import keras_tx as ktx

    return ktx.data.language_modeling(
        REFERENCE, vocabulary_size=1024, sequence_length=128, batch_size=16
    )


def make(name, tokenizer):
    import keras_tx as ktx

    return ktx.GPT(
        **SIZES[name],
        tokenizer=tokenizer,
        max_sequence_length=256,
        position="rotary",
        normalization="rms",
        gated=True,
        use_bias=False,
    )


def train(folder, epochs):
    """Writes both models' weights."""
    import keras

    train_data, test_data, tokenizer = data()
    for name, count in epochs.items():
        keras.utils.set_random_seed(0)
        model, steps = make(name, tokenizer), count * len(train_data)
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, steps - steps // 20, warmup_target=3e-3, warmup_steps=steps // 20, alpha=0.02
        )
        model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0))
        model.fit(train_data, epochs=count, verbose=2)
        loss = model.evaluate(test_data, verbose=0, return_dict=True)["loss"]
        print(f"{name}: {loss:.3f} nats a token, {model.count_params():,} weights", file=sys.stderr)
        model.save_weights(Path(folder) / f"{name}.weights.h5")


def measure(subject, quick):
    import keras
    import numpy as np

    from keras_tx.decoding import Greedy, Speculative

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    _, test_data, tokenizer = data()
    models = {name: make(name, tokenizer) for name in SIZES}
    for name, model in models.items():
        model.load_weights(Path(os.environ[WEIGHTS]) / f"{name}.weights.h5")
    models["model"].compile(jit_compile=subject.options["jit"])
    rows = np.concatenate([inputs["token_ids"][:, :PROMPT] for inputs, *_ in test_data])
    prompts = rows[:: len(rows) // PROMPTS][:PROMPTS].tolist()
    guesses, batch = subject.options["guesses"], subject.options["batch"]
    strategy = Speculative(models["draft"], guesses) if guesses else Greedy()

    def run(strategy=strategy):
        return models["model"].generate(
            prompts,
            strategy=strategy,
            max_new_tokens=NEW,
            batch_size=batch,
            return_dict=True,
            verbose=0,
        )

    if guesses:
        result, plain = run(), run(Greedy())
        taken = result["accepted_tokens"].sum() / result["drafted_tokens"].sum()
        same = np.mean(
            [a == b for a, b in zip(result["token_ids"], plain["token_ids"], strict=True)]
        )
        harness.note(f"{taken:.0%} of the guesses taken, {same:.0%} of the texts the same")
    return harness.timed(run, 1 if quick else 3)


def main():
    if "--subject" not in sys.argv and WEIGHTS not in os.environ:
        folder = tempfile.mkdtemp(prefix="speculative-")
        began = time.monotonic()
        train(folder, dict.fromkeys(EPOCHS, 1) if "--quick" in sys.argv else EPOCHS)
        print(f"trained in {time.monotonic() - began:.0f} s: {folder}", file=sys.stderr)
        os.environ[WEIGHTS] = folder
    harness.main(subjects(), measure, __file__, __doc__.split("\n")[0])


if __name__ == "__main__":
    main()
