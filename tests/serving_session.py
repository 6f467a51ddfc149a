"""A stand-in for TensorFlow Serving: the server's own loading path without the server.

`serve(path, signature, inputs)` answers one request from a SavedModel as the stock server would:
`LoadSavedModel` and `Session::Run` through the C API of the installed TensorFlow's shared
library, with XLA turned off first (the server's `main` does that), in a process of its own that
imports neither tensorflow nor keras. One process answers every request of a test session, since
loading the library is what costs. `text_ops=False` is a server without TF Text's operations.
"""

import atexit
import contextlib
import ctypes
import importlib.util
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile

import numpy as np


class ServingError(RuntimeError):
    """The session answered with a status that is not OK, or its process died."""


def serve(path, signature, inputs, *, text_ops=True):
    """One request: a dict of arrays (or lists, str and bytes included) in, a dict of arrays out.

    Strings come back as `bytes` in an object array.
    """
    return _process(text_ops).ask("run", str(path), signature, inputs)


def signatures(path, *, text_ops=True):
    """`{name: {"inputs": {key: (dtype, shape)}, "outputs": {...}}}`, None for an unknown size."""
    return _process(text_ops).ask("signatures", str(path))


_processes = {}


def _process(text_ops):
    held = _processes.get(text_ops)
    if held is None or held.child.poll() is not None:
        held = _processes[text_ops] = _Process(text_ops)
    return held


class _Process:
    def __init__(self, text_ops):
        self.log = tempfile.TemporaryFile()
        command = [sys.executable, __file__] + (["--text-ops"] if text_ops else [])
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )
        atexit.register(self.close)

    def ask(self, *request):
        try:
            _send(self.child.stdin, request)
            outcome, answer = _receive(self.child.stdout)
        except (EOFError, BrokenPipeError):
            code = self.child.wait()
            self.log.seek(0)
            tail = self.log.read()[-4000:].decode(errors="replace")
            raise ServingError(f"The serving process died with {code}:\n{tail}") from None
        if outcome == "error":
            raise ServingError(answer)
        return answer

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.wait()


def _send(stream, message):
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream):
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


# What follows runs in the serving process.

DTYPES = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    6: np.int8,
    7: np.object_,
    9: np.int64,
    10: np.bool_,
}
STRING = 7
TSTRING_BYTES = 24


class _Output(ctypes.Structure):
    _fields_ = [("oper", ctypes.c_void_p), ("index", ctypes.c_int)]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    ]


def _folder(package):
    return pathlib.Path(importlib.util.find_spec(package).origin).parent


def _library(text_ops):
    folder = _folder("tensorflow")
    ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
    library._ZN10tensorflow21DisableXlaCompilationEv()
    for name in (
        "TF_NewStatus TF_NewGraph TF_NewSessionOptions TF_NewBuffer TF_LoadLibrary "
        "TF_LoadSessionFromSavedModel TF_GraphOperationByName TF_AllocateTensor TF_TensorData "
        "TF_StringGetDataPointer"
    ).split():
        getattr(library, name).restype = ctypes.c_void_p
    for name in "TF_Dim TF_StringGetSize TF_TensorByteSize".split():
        getattr(library, name).restype = ctypes.c_size_t
    library.TF_Message.restype = ctypes.c_char_p
    if text_ops:
        for file in sorted((_folder("tensorflow_text") / "python" / "ops").glob("*.so")):
            status = _Status(library)
            library.TF_LoadLibrary(str(file).encode(), status.pointer)
            status.check()
    return library


class _Status:
    def __init__(self, library):
        self.library = library
        self.pointer = ctypes.c_void_p(library.TF_NewStatus())

    def check(self):
        code = self.library.TF_GetCode(self.pointer)
        message = self.library.TF_Message(self.pointer).decode(errors="replace")
        self.library.TF_DeleteStatus(self.pointer)
        if code:
            raise ServingError(f"code {code}: {message}")


class _Session:
    """One loaded SavedModel."""

    def __init__(self, library, path):
        self.library = library
        self.graph = ctypes.c_void_p(library.TF_NewGraph())
        options = ctypes.c_void_p(library.TF_NewSessionOptions())
        status = _Status(library)
        two_threads = b"\x10\x02\x28\x02"  # ConfigProto: intra_op 2, inter_op 2
        library.TF_SetConfig(options, two_threads, len(two_threads), status.pointer)
        status.check()
        buffer = ctypes.c_void_p(library.TF_NewBuffer())
        status = _Status(library)
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = ctypes.c_void_p(
            library.TF_LoadSessionFromSavedModel(
                options, None, path.encode(), tags, 1, self.graph, buffer, status.pointer
            )
        )
        library.TF_DeleteSessionOptions(options)
        status.check()
        held = ctypes.cast(buffer, ctypes.POINTER(_Buffer)).contents
        meta_graph = ctypes.string_at(held.data, held.length)
        library.TF_DeleteBuffer(buffer)
        self.signatures = _read_signatures(meta_graph)

    def run(self, signature, inputs):
        if signature not in self.signatures:
            raise ServingError(f"No signature {signature!r}; there are {sorted(self.signatures)}.")
        wanted = self.signatures[signature]
        if set(inputs) != set(wanted["inputs"]):
            raise ServingError(
                f"Inputs of {signature!r} are {sorted(wanted['inputs'])}, got {sorted(inputs)}."
            )
        feeds = [(*wanted["inputs"][key][:2], value) for key, value in inputs.items()]
        fetches = list(wanted["outputs"].items())
        tensors = (ctypes.c_void_p * len(feeds))(
            *[self._tensor(code, value) for _, code, value in feeds]
        )
        results = (ctypes.c_void_p * len(fetches))()
        status = _Status(self.library)
        self.library.TF_SessionRun(
            self.session,
            None,
            (_Output * len(feeds))(*[self._output(name) for name, _, _ in feeds]),
            tensors,
            len(feeds),
            (_Output * len(fetches))(*[self._output(info[0]) for _, info in fetches]),
            results,
            len(fetches),
            None,
            0,
            None,
            status.pointer,
        )
        for tensor in tensors:
            self.library.TF_DeleteTensor(ctypes.c_void_p(tensor))
        status.check()
        return {key: self._array(result) for (key, _), result in zip(fetches, results, strict=True)}

    def _output(self, name):
        operation, _, index = name.partition(":")
        pointer = self.library.TF_GraphOperationByName(self.graph, operation.encode())
        if not pointer:
            raise ServingError(f"The graph has no operation {operation!r}.")
        return _Output(pointer, int(index or 0))

    def _tensor(self, code, value):
        library = self.library
        array = np.asarray(value, DTYPES[code])
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        size = array.size * (TSTRING_BYTES if code == STRING else array.itemsize)
        tensor = library.TF_AllocateTensor(code, shape, array.ndim, ctypes.c_size_t(size))
        data = library.TF_TensorData(ctypes.c_void_p(tensor))
        if code != STRING:
            ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, size)
            return tensor
        for index, item in enumerate(array.ravel()):
            item = item.encode() if isinstance(item, str) else bytes(item)
            place = ctypes.c_void_p(data + index * TSTRING_BYTES)
            library.TF_StringInit(place)
            library.TF_StringCopy(place, item, ctypes.c_size_t(len(item)))
        return tensor

    def _array(self, result):
        library, tensor = self.library, ctypes.c_void_p(result)
        code = library.TF_TensorType(tensor)
        shape = [library.TF_Dim(tensor, axis) for axis in range(library.TF_NumDims(tensor))]
        count = int(np.prod(shape))
        data = library.TF_TensorData(tensor)
        if code == STRING:
            array = np.empty(count, np.object_)
            for index in range(count):
                place = ctypes.c_void_p(data + index * TSTRING_BYTES)
                array[index] = ctypes.string_at(
                    library.TF_StringGetDataPointer(place), library.TF_StringGetSize(place)
                )
        else:
            raw = ctypes.string_at(data, library.TF_TensorByteSize(tensor)) if count else b""
            array = np.frombuffer(raw, DTYPES[code]).copy()
        library.TF_DeleteTensor(tensor)
        return array.reshape(shape)


def _fields(data):
    """The fields of one protocol buffer message: `(number, int or bytes)` in order."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(kind)
        length = varint() if length is None else length
        yield number, data[position : position + length]
        position += length


def _read_signatures(meta_graph):
    """`MetaGraphDef.signature_def`: `{name: {"inputs": {key: (tensor, dtype, shape)}, ...}}`."""
    found = {}
    for number, entry in _fields(meta_graph):
        if number != 5:
            continue
        pair = dict(_fields(entry))
        sides = {1: {}, 2: {}}
        for side, item in _fields(pair[2]):
            if side in sides:
                info = dict(_fields(item))
                sides[side][info[1].decode()] = _tensor_info(info[2])
        found[pair[1].decode()] = {"inputs": sides[1], "outputs": sides[2]}
    return found


def _tensor_info(data):
    info = dict(_fields(data))
    shape = info.get(3, b"")
    sizes = [dict(_fields(size)).get(1, 0) for number, size in _fields(shape) if number == 2]
    return info[1].decode(), info.get(2, 0), [None if size >= 1 << 63 else size for size in sizes]


def _main(text_ops):
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints goes to the log, not between the answers
    library, sessions = None, {}
    while True:
        try:
            verb, path, *rest = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            library = library or _library(text_ops)
            stamp = (path, os.stat(os.path.join(path, "saved_model.pb")).st_mtime_ns)
            if stamp not in sessions:
                sessions[stamp] = _Session(library, path)
            session = sessions[stamp]
            if verb == "run":
                answer = session.run(*rest)
            else:
                answer = {
                    name: {
                        side: {
                            key: (np.dtype(DTYPES[code]).name, shape)
                            for key, (_, code, shape) in infos.items()
                        }
                        for side, infos in sides.items()
                    }
                    for name, sides in session.signatures.items()
                    if not name.startswith("__")
                }
            if {"tensorflow", "keras"} & set(sys.modules):
                raise ServingError("The serving process imported tensorflow or keras.")
            _send(answers, ("ok", answer))
        except Exception as error:
            _send(answers, ("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    _main("--text-ops" in sys.argv)
