"""What `import keras_tx` costs over `import keras`.

    python benchmarks/import_time.py [--quick] [--json FILE]

CPU seconds of fresh processes on one core with one thread, the two imports in turn. About two
minutes; the target is 0.3 s.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")
SUBJECTS = {"keras": "import keras", "keras_tx": "import keras, keras_tx"}
ROOT = Path(__file__).resolve().parent.parent
# Seconds over `import keras`.
TARGET = 0.3


def pin():
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(statement, backend):
    """(CPU seconds, peak MB) of one fresh interpreter that runs the statement."""
    report = (
        "import resource; u = resource.getrusage(resource.RUSAGE_SELF); "
        "print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{statement}; {report}"],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        preexec_fn=pin,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, megabytes = result.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def compare(backend, rounds):
    """One row for each subject; the ratio is that of the same round."""
    if rounds > 1:
        # Fills the file cache and writes the bytecode.
        measure(SUBJECTS["keras_tx"], backend)
    seconds = {name: [] for name in SUBJECTS}
    peaks = {name: 0.0 for name in SUBJECTS}
    for _ in range(rounds):
        for name, statement in SUBJECTS.items():
            spent, peak = measure(statement, backend)
            seconds[name].append(spent)
            peaks[name] = max(peaks[name], peak)
    reference = statistics.median(seconds["keras"])
    return [
        {
            "case": "import",
            "subject": name,
            "backend": backend,
            "reference": "keras",
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
            "ratio": round(
                statistics.median(
                    own / other for own, other in zip(values, seconds["keras"], strict=True)
                ),
                3,
            ),
            "peak_mb": round(peaks[name]),
            "target": round(1 + TARGET / reference, 3) if name == "keras_tx" else None,
        }
        for name, values in seconds.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--quick", action="store_true", help="one round on one backend")
    arguments = parser.parse_args()
    backends = BACKENDS[:1] if arguments.quick else BACKENDS
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    rows = []
    for backend in backends:
        rows += compare(backend, rounds=1 if arguments.quick else 7)
        keras, keras_tx = rows[-2:]
        print(
            f"{backend:<10}  keras {keras['median']:.2f} s ({keras['min']:.2f}-{keras['max']:.2f})"
            f"  keras_tx {keras_tx['median']:.2f} s"
            f" ({keras_tx['min']:.2f}-{keras_tx['max']:.2f})"
            f"  over {keras_tx['median'] - keras['median']:+.2f} s  ratio {keras_tx['ratio']:.2f}"
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
