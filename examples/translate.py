"""Translates English verses into Italian: a recurrent encoder-decoder, with and without attention.

    python examples/translate.py             Bahdanau's attention
    python examples/translate.py --compare   and the same model with one context vector

About 14 minutes of one CPU core a model. Expect (2,000 held-out verses) 13.4 BLEU and 34.6 chrF
with attention, and about half the BLEU without: attention gains most where sources are long. Ctrl-C
ends the training early and goes on with what was learnt.
"""

import argparse
import signal
from pathlib import Path

import keras

import keras_tx as ktx

VERSES = Path(__file__).parent / "datasets" / "world_english_diodati"
# So that each trains for the same time.
EPOCHS = {"bahdanau": 18, "luong": 22, "none": 30}
LENGTHS = ((1, 9), (10, 14), (15, 17), (18, 20))  # words of the source
SAMPLES = (5, 50, 500)


def data(batch_size: int = 32, vocabulary_size: int = 2000, seed: int = 0):
    """Training and test batches, and the tokenizer that both languages share."""
    return ktx.data.text_pairs(
        VERSES, vocabulary_size=vocabulary_size, batch_size=batch_size, buckets=6, seed=seed
    )


def held_out() -> tuple[list[str], list[str]]:
    """The test's sources and references."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(max(VERSES.glob("*.*.*")))
    pairs = tfds.as_numpy(builder.as_dataset("test", as_supervised=True))
    return tuple(
        zip(*((english.decode(), italian.decode()) for english, italian in pairs), strict=True)
    )


class StopOnInterrupt(keras.callbacks.Callback):
    """Ctrl-C ends the training after the step at hand, on every backend in good order."""

    def on_train_begin(self, logs=None):
        self.previous = signal.signal(signal.SIGINT, self.stop)

    def on_train_end(self, logs=None):
        signal.signal(signal.SIGINT, self.previous)

    def stop(self, *_):
        self.model.stop_training = True


def train(train_data, tokenizer, attention, epochs: int, seed: int = 0):
    keras.utils.set_random_seed(seed)
    model = ktx.Seq2Seq.from_size(
        "seq2seq_mini",
        tokenizer=tokenizer,
        embedding_dim=128,
        attention=attention,
        dropout=0.3,
    )
    steps = epochs * len(train_data)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 20, warmup_target=2e-3, warmup_steps=steps // 20, alpha=0.01
    )
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=1e-2, global_clipnorm=1.0))
    model.fit(train_data, epochs=epochs, callbacks=[StopOnInterrupt()])
    return model


def translate(model, sources) -> list[str]:
    """Texts of like length together, so that little is padded."""
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    translations = {}
    for start in range(0, len(order), 256):
        numbers = order[start : start + 256]
        texts = model.generate([sources[number] for number in numbers], max_new_tokens=64)
        translations.update(zip(numbers, texts, strict=True))
    return [translations[number] for number in range(len(sources))]


def quality(translations, references) -> tuple[float, float]:
    """BLEU and chrF."""
    import sacrebleu

    return (
        sacrebleu.corpus_bleu(translations, [references]).score,
        sacrebleu.corpus_chrf(translations, [references]).score,
    )


def by_length(translations, sources, references) -> list[float]:
    """BLEU of the sources of so many words."""
    words = [len(source.split()) for source in sources]
    scores = []
    for least, most in LENGTHS:
        rows = [row for row, count in enumerate(words) if least <= count <= most]
        chosen = [[texts[row] for row in rows] for texts in (translations, references)]
        scores.append(quality(*chosen)[0])
    return scores


def compare(baseline, system, sources, references):
    """Prints what attention gains, and whether chance could have given it (paired bootstrap)."""
    import sacrebleu
    from sacrebleu.significance import PairedTest

    metrics = {"BLEU": sacrebleu.BLEU(), "chrF": sacrebleu.CHRF()}
    systems = [("one context vector", baseline), ("attention", system)]
    results = PairedTest(systems, metrics, [references], test_type="bs", n_samples=1000)()[1]
    for name, scores in results.items():
        if name != "System":
            fixed, attention = scores
            print(
                f"{name}: {attention.score:.2f} with attention, {fixed.score:.2f} without "
                f"(p = {attention.p_value:.4f})"
            )
    print("BLEU by words of the source")
    columns = (by_length(texts, sources, references) for texts in (system, baseline))
    for (least, most), attention, fixed in zip(LENGTHS, *columns, strict=True):
        print(
            f"  {least:2d} to {most:2d}: {attention:5.2f} {fixed:5.2f}, ratio "
            f"{attention / fixed:.2f}"
        )


def draw_alignment(model, source: str, path):
    """Which source pieces each target piece was read from, as a heat map."""
    result = model.generate([source], max_new_tokens=64, return_dict=True)
    pieces = model.tokenizer.id_to_token
    ktx.analysis.plot_attention(
        result["attention_scores"][0],
        keys=[pieces(token) for token in model.tokenizer(source)],
        queries=[pieces(token) for token in result["token_ids"][0]],
        path=path,
    )


def show(sources, references, translations):
    for source, reference, translation in zip(sources, references, translations, strict=True):
        print(f"  {source}\n    {translation}\n    (Diodati: {reference})")


def demonstrate(folder, epochs: int, served):
    """A short run for the demonstration: its metrics, and the path of the published model."""
    train_data, _, tokenizer = data()
    if not epochs:  # is all in place?
        train_data, epochs = train_data.take(2), 1
    model = train(train_data, tokenizer, "bahdanau", epochs)
    sources, references = (texts[:500] for texts in held_out())
    bleu, chrf = quality(translate(model, sources), references)
    path = ktx.publish(model, folder / "translator", max_new_tokens=64)
    chosen = [sources[number % len(sources)] for number in SAMPLES]
    answer = served(path, text=chosen)
    show(
        chosen,
        [references[number % len(references)] for number in SAMPLES],
        [text.decode() for text in answer["text"]],
    )
    picture = folder / "translator_alignment.png"
    draw_alignment(model, chosen[0], picture)
    print(f"what each piece was read from: {picture}")
    return f"translation: BLEU {bleu:.1f}, chrF {chrf:.1f} on 500 held-out verses", path


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attention", choices=list(EPOCHS), default="bahdanau")
    parser.add_argument("--compare", action="store_true", help="train the fixed context vector too")
    parser.add_argument("--epochs", type=int, help="default: " + str(EPOCHS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="hardly train: is all in place?")
    parser.add_argument("--picture", default="alignment.png", help="the heat map of an alignment")
    parser.add_argument("--publish", metavar="FOLDER", help="where to publish, as FOLDER/<version>")
    arguments = parser.parse_args(argv)
    train_data, test_data, tokenizer = data(seed=arguments.seed)
    sources, references = held_out()
    if arguments.quick:
        train_data, test_data = train_data.take(2), test_data.take(2)
        sources, references, arguments.epochs = sources[:99], references[:99], 1
    translations = {}
    names = [arguments.attention] + ["none"] * (arguments.compare)
    for name in names:
        attention = None if name == "none" else name
        epochs = arguments.epochs or EPOCHS[name]
        model = train(train_data, tokenizer, attention, epochs, arguments.seed)
        results = model.evaluate(test_data, verbose=0, return_dict=True)
        translations[name] = translate(model, sources)
        bleu, chrf = quality(translations[name], references)
        print(
            f"attention {name}: BLEU {bleu:.2f}, chrF {chrf:.2f}, "
            f"{results['loss']:.3f} nats a token"
        )
        chosen = [number % len(sources) for number in SAMPLES]
        show(*([texts[n] for n in chosen] for texts in (sources, references, translations[name])))
        if attention is not None:
            draw_alignment(model, sources[chosen[0]], arguments.picture)
            print(f"what each piece was read from: {arguments.picture}")
        if arguments.publish and name == names[0]:
            print("published", ktx.publish(model, arguments.publish))
    if arguments.compare:
        compare(translations["none"], translations[arguments.attention], sources, references)


if __name__ == "__main__":
    main()
