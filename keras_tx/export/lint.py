"""Refuses a SavedModel whose graph the stock TensorFlow Serving cannot run."""

from pathlib import Path

# What the server links beside TensorFlow's own operations: TF Text's.
TEXT_OPERATIONS = frozenset(
    """
    CaseFoldUTF8 ConstrainedSequence FastBertNormalize FastWordpieceTokenizeWithOffsets
    FindSourceOffsets MaxSpanningTree NormalizeUTF8 NormalizeUTF8WithOffsetsMap PhraseTokenize
    RegexSplitWithOffsets SentenceFragments SentenceFragmentsV2 SentencepieceDetokenizeOp
    SentencepieceIdToStringOp SentencepieceOp SentencepieceStringToIdOp SentencepieceTokenizeOp
    SentencepieceTokenizeWithOffsetsOp SentencepieceVocabSizeOp SplitMergeTokenizeWithOffsets
    TokenizerFromLogits UnicodeScriptTokenizeWithOffsets WhitespaceTokenizeWithOffsets
    WordpieceTokenizeWithOffsets TFText>BoiseTagsToOffsets TFText>ByteSplitByOffsets
    TFText>ByteSplitWithOffsets TFText>FastSentencepieceDetokenize
    TFText>FastSentencepieceTokenize TFText>FastWordpieceDetokenize TFText>NgramsStringJoin
    TFText>OffsetsToBoiseTags TFText>PhraseDetokenize TFText>RoundRobinGenerateMasks
    TFText>RoundRobinTrim TFText>Utf8Binarize TFText>WhitespaceTokenizeWithOffsetsV2
    """.split()
)
PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def lint(path: Path) -> None:
    """Raises ValueError naming every operation that the server refuses, and what to do."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
    found = sorted({reason for graph in saved_model.meta_graphs for reason in _reasons(graph)})
    if found:
        raise ValueError(
            "TensorFlow Serving, as it is started by default, does not run this model:\n- "
            + "\n- ".join(found)
        )


def _reasons(meta_graph):
    import tensorflow as tf

    library = meta_graph.graph_def.library
    functions = {function.signature.name for function in library.function}
    for function in library.function:
        if function.attr["_XlaMustCompile"].b:
            yield _must_compile(function.signature.name)
    bodies = [meta_graph.graph_def.node, *(function.node_def for function in library.function)]
    for node in (node for body in bodies for node in body):
        if node.attr["_XlaMustCompile"].b:
            yield _must_compile(node.name)
        if node.op in PYTHON_OPERATIONS:
            yield (
                f"{node.op} ({node.name}) calls back into Python, which a server does not have. "
                "Write it with keras.ops or TensorFlow operations."
            )
        elif "Xla" in node.op:
            yield (
                f"{node.op} ({node.name}) needs XLA, which the server turns off. "
                "`keras.ops.scatter_update` does what `keras.ops.slice_update` does, without XLA."
            )
        elif not (
            hasattr(tf.raw_ops, node.op) or node.op in TEXT_OPERATIONS or node.op in functions
        ):
            yield (
                f"{node.op} ({node.name}) is an operation neither of TensorFlow nor of TF Text, "
                "and the server links no other."
            )


def _must_compile(name):
    return (
        f"{name} must be compiled by XLA (jit_compile=True; Keras does so for grouped "
        "convolutions), which the server turns off."
    )
