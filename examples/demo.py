"""Trains, evaluates, publishes and queries three models on real data, in under six minutes.

    python examples/demo.py

A translator, a writer and a reader of digits, each trained for a minute or two on 2 CPU cores: what
the full runs of the examples reach is in their own files. The published models are asked through
TensorFlow alone, as a server would.
"""

import argparse
import time
from pathlib import Path

import classify_digits
import translate
import write_reference

import keras_tx as ktx

ROOT = Path(__file__).parent.parent


def heading(text):
    print(f"\n=== {text} ===", flush=True)


def served(path, **inputs):
    """The answer of a published model, loaded without Keras."""
    import tensorflow as tf

    signature = tf.saved_model.load(path).signatures["serving_default"]
    answer = signature(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in answer.items()}


def digits(folder, epochs):
    import tensorflow as tf

    heading("Handwritten digits: a vision transformer")
    model, test_data = classify_digits.train(epochs)
    accuracy = model.evaluate(test_data, verbose=0, return_dict=True)["accuracy"]
    path = ktx.publish(model, folder / "digits")
    images, labels, _ = next(iter(test_data))
    images = [tf.io.encode_png(image).numpy() for image in images[:10]]
    answer = served(path, image_bytes=images)
    print("labels:    ", *labels.numpy()[:10])
    print("classified:", *[label.decode() for label in answer["labels"]])
    return f"digits: test accuracy {accuracy:.3f}", path


def reference(folder, epochs):
    heading("Python's language reference: a decoder-only transformer")
    train_data, test_data, tokenizer = write_reference.data()
    model = write_reference.train(train_data, tokenizer, epochs)
    bits = write_reference.compress(model, test_data)
    path = ktx.publish(model, folder / "reference", max_new_tokens=60)
    prompts = ["The for statement ", "A class definition ", "Return "]
    answer = served(path, text=prompts)
    for prompt, text in zip(prompts, answer["text"], strict=True):
        print(f"{prompt!r} -> {text.decode()!r}")
    compared = ", ".join(f"{name} {value:.2f}" for name, value in bits.items())
    return f"reference: bits for each byte of the held-out text: {compared}", path


def translation(folder, epochs):
    heading("English to Italian: a recurrent encoder-decoder with Bahdanau's attention")
    return translate.demonstrate(folder, epochs, served)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="hardly train: is all in place?")
    parser.add_argument("--folder", type=Path, default=ROOT / "saved_models")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    began = time.monotonic()
    results = [
        digits(arguments.folder, 1 if quick else 50),
        reference(arguments.folder, 1 if quick else 4),
        translation(arguments.folder, 0 if quick else 3),
    ]
    heading(f"Done in {(time.monotonic() - began) / 60:.1f} minutes")
    for metrics, path in results:
        print(f"{metrics}\n    published: {path}")
    print(
        "Each was trained for a minute or two. In full, 5 minutes make of the writer 1.70 bits\n"
        "(examples/write_reference.py), and 14 of the translator BLEU 13.4 (examples/translate.py)."
    )


if __name__ == "__main__":
    main()
