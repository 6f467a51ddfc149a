"""Classifies scikit-learn's handwritten digits with a small vision transformer.

    python examples/classify_digits.py

About 75 seconds of one CPU core. Expect 97 to 98% of the 359 test images.
"""

import argparse
from pathlib import Path

import keras

import keras_tx as ktx

DIGITS = Path(__file__).parent / "datasets" / "optical_digits"


def train(epochs: int = 80, seed: int = 0):
    """The trained model and the test data."""
    keras.utils.set_random_seed(seed)
    train_data, test_data, class_names = ktx.data.image_classification(
        DIGITS, batch_size=64, seed=seed
    )
    model = ktx.ViT(
        num_layers=4,
        hidden_dim=64,
        num_heads=4,
        image_size=8,
        patch_size=2,
        num_channels=1,
        pooling="mean",
        dropout=0.1,
        class_names=class_names,
    )
    steps = epochs * len(train_data)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=steps // 10
    )
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.05))
    model.fit(train_data, epochs=epochs, verbose=2 if epochs > 1 else 1)
    return model, test_data


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publish", metavar="FOLDER", help="where to publish, as FOLDER/<version>")
    arguments = parser.parse_args(argv)
    model, test_data = train(arguments.epochs, arguments.seed)
    results = model.evaluate(test_data, verbose=0, return_dict=True)
    print(f"test accuracy {results['accuracy']:.4f}, loss {results['loss']:.4f}")
    if arguments.publish:
        print("published", ktx.publish(model, arguments.publish))


if __name__ == "__main__":
    main()
