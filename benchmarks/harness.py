"""What the benchmarks share: processes of their own, pinned and interleaved, and the table.

A script gives `main` its cases and a function that measures one subject in a fresh process.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Subject:
    """One row of the table.

    Args:
        case: What is measured; its subjects are compared.
        name: Whose it is.
        backend: Of Keras, or "torch" for a peer that is plain PyTorch.
        options: Handed to the measuring function.
        targets: {name of a peer in the case: the ratio of times wanted}.
    """

    case: str
    name: str
    backend: str
    options: dict = dataclasses.field(default_factory=dict)
    targets: dict = dataclasses.field(default_factory=dict)


def main(subjects: list[Subject], measure: Callable, script: str, description: str):
    """Measures every subject in turn, round after round, and prints medians and ratios.

    Args:
        subjects: A peer stands before those that are compared with it.
        measure: `measure(subject, quick) -> {"seconds", "first_seconds", "peak_mb"}`, called in a
            process that is pinned to one core and has imported nothing.
        script: `__file__` of the caller.
        description: The first line of `--help`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--quick", action="store_true", help="see that it runs, in seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="the cases whose name contains this")
    parser.add_argument("--subject", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subject is not None:
        print(json.dumps(measure(subjects[arguments.subject], arguments.quick)))
        return
    chosen = [i for i, subject in enumerate(subjects) if arguments.only in subject.case]
    runs = {i: [] for i in chosen}
    for number in range(1 if arguments.quick else arguments.rounds):
        for i in chosen:
            began = time.monotonic()
            runs[i].append(_run(script, i, subjects[i], arguments))
            took = time.monotonic() - began
            print(f"round {number + 1}: {_title(subjects[i])}, {took:.0f} s", file=sys.stderr)
    rows = [row for i in chosen for row in _rows(subjects, i, runs)]
    _print(rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


def _run(script, index, subject, arguments):
    threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(threads, "1"),
        "KERAS_BACKEND": subject.backend,
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    command = [sys.executable, script, "--subject", str(index)] + ["--quick"] * arguments.quick
    result = subprocess.run(
        ["taskset", "-c", str(arguments.core), *command],
        env=environment,
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise RuntimeError(f"{_title(subject)} failed:\n{result.stderr[-3000:]}")
    for line in result.stderr.splitlines():
        if line.startswith(NOTE):
            print(f"{_title(subject)}: {line.removeprefix(NOTE)}", file=sys.stderr)
    return json.loads(result.stdout.splitlines()[-1])


NOTE = "note: "


def note(text: str):
    """For `measure`: something to tell that is no time."""
    print(NOTE + text, file=sys.stderr)


def _title(subject):
    return f"{subject.case}, {subject.name}"


def _rows(subjects, index, runs):
    """One row for each peer that the subject has a target for, or one without."""
    subject, own = subjects[index], runs[index]
    seconds = [run["seconds"] for run in own]
    row = {
        "case": subject.case,
        "subject": subject.name,
        "backend": subject.backend,
        "reference": None,
        "median": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
        "ratio": None,
        "first_call": statistics.median(run["first_seconds"] for run in own),
        "peak_mb": max(run["peak_mb"] for run in own),
        "target": None,
    }
    rows = []
    for name, target in subject.targets.items():
        peer = next(i for i in runs if (subjects[i].case, subjects[i].name) == (subject.case, name))
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(own, runs[peer], strict=True)]
        rows.append(
            {**row, "reference": name, "ratio": statistics.median(ratios), "target": target}
        )
    return rows or [row]


def _print(rows):
    print(f"{platform.processor() or platform.machine()}, one core, {time.strftime('%Y-%m-%d')}\n")
    print(
        "| Case | Subject | Median (s) | Range | Peer | Ratio | Target | First (s) | Added (MB) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        print(
            f"| {row['case']} | {row['subject']} | {row['median']:.3f} "
            f"| {row['min']:.3f}-{row['max']:.3f} | {row['reference'] or ''} | {ratio} | {target} "
            f"| {row['first_call']:.1f} | {row['peak_mb']:.0f} |"
        )


def memory_mb(field: str) -> float:
    """`VmRSS`, what this process holds, or `VmHWM`, the most it ever held."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise ValueError(field)


def timed(run: Callable, repeats: int) -> dict:
    """CPU seconds of `run()`: of the first call, and the median of those after a second one."""
    idle = memory_mb("VmRSS")
    began = time.monotonic()
    run()
    first = time.monotonic() - began
    seconds = []
    for number in range(repeats + 1):
        began = time.process_time()
        run()
        if number:
            seconds.append(time.process_time() - began)
    peak = memory_mb("VmHWM") - idle
    return {"seconds": statistics.median(seconds), "first_seconds": first, "peak_mb": peak}
