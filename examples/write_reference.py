"""Learns to write Python's language reference, and says how well it compresses what it never saw.

    python examples/write_reference.py

About 5 minutes of one CPU core (AMX). Expect 1.70 bits for each byte of the held-out
text; bz2 -9 needs 1.96 for that text alone, and 1.53 when it has read the training text first.
"""

import argparse
import bz2
from pathlib import Path

import keras

import keras_tx as ktx

REFERENCE = Path(__file__).parent / "datasets" / "python_reference"


def data(sequence_length: int = 256, vocabulary_size: int = 1024, seed: int = 0):
    return ktx.data.language_modeling(
        REFERENCE,
        vocabulary_size=vocabulary_size,
        sequence_length=sequence_length,
        batch_size=8,
        test_stride=sequence_length // 2,
        seed=seed,
    )


def train(train_data, tokenizer, epochs: int = 16, seed: int = 0):
    """A model with rotary positions, RMSNorm and SwiGLU, in bfloat16, trained with AdamW."""
    keras.utils.set_random_seed(seed)
    model = ktx.GPT.from_size(
        "gpt_mini",
        tokenizer=tokenizer,
        max_sequence_length=256,
        position="rotary",
        normalization="rms",
        gated=True,
        use_bias=False,
        dropout=0.1,
        dtype="mixed_bfloat16",
    )
    steps = epochs * len(train_data)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 20, warmup_target=3e-3, warmup_steps=steps // 20, alpha=0.02
    )
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.1, beta_2=0.98, global_clipnorm=1.0)
    )
    model.fit(train_data, epochs=epochs)
    return model


def compress(model, test_data) -> dict[str, float]:
    """Bits for each byte of the test text: the model's, and those of bz2."""
    text, num_tokens = ktx.data.covered_text(test_data, model.tokenizer)
    loss = model.evaluate(test_data, verbose=0, return_dict=True)["loss"]
    held_out = text.encode()
    read_before = "".join(training_texts()).encode()
    both, before = (len(bz2.compress(part, 9)) for part in (read_before + held_out, read_before))
    return {
        "model": ktx.data.bits_per_byte(loss, num_tokens, len(held_out)),
        "bz2 -9": 8 * len(bz2.compress(held_out, 9)) / len(held_out),
        "bz2 -9 after the training text": 8 * (both - before) / len(held_out),
    }


def training_texts() -> list[str]:
    import tensorflow_datasets as tfds

    versions = sorted(REFERENCE.glob("*.*.*"))
    rows = tfds.as_numpy(tfds.builder_from_directory(versions[-1]).as_dataset("train"))
    return [row["text"].decode() for row in rows]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt", default="The for statement ")
    parser.add_argument("--publish", metavar="FOLDER", help="where to publish, as FOLDER/<version>")
    arguments = parser.parse_args(argv)
    train_data, test_data, tokenizer = data(seed=arguments.seed)
    model = train(train_data, tokenizer, arguments.epochs, arguments.seed)
    for name, bits in compress(model, test_data).items():
        print(f"{name}: {bits:.3f} bits per byte")
    print(arguments.prompt + model.generate(arguments.prompt, max_new_tokens=60))
    if arguments.publish:
        print("published", ktx.publish(model, arguments.publish))


if __name__ == "__main__":
    main()
