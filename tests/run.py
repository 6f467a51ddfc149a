"""Runs ruff, then the tests on each backend, every backend in a process of its own.

    python tests/run.py [tensorflow] [jax] [torch] [-- pytest arguments]

As many backends run side by side as there are cores, each with its share of the threads: on two
cores that is steadier than two threads a backend, and nothing is imported or compiled twice. What a
backend prints is shown when it ends; the closing lines of all of them come last.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("tensorflow", "jax", "torch")


def environment(backend, threads):
    share = str(threads)
    variables = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": share,
        "OPENBLAS_NUM_THREADS": share,
        "TF_NUM_INTRAOP_THREADS": share,
        "TF_NUM_INTEROP_THREADS": share,
    }
    variables.setdefault("CUDA_VISIBLE_DEVICES", "")
    variables.setdefault("HF_HUB_OFFLINE", "1")
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if threads == 1:
        flags = variables.get("XLA_FLAGS", "")
        variables["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return variables


class Run:
    """One backend's pytest process and its output."""

    def __init__(self, backend, threads, arguments):
        self.backend = backend
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.began = time.monotonic()
        self.seconds = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-r", "fEs", "--durations=10", *arguments],
            cwd=ROOT,
            env=environment(backend, threads),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def ended(self):
        if self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.began
        return True

    def output(self):
        # The child shares the file's position: leave it where the child writes.
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace")

    def progress(self):
        percents = re.findall(r"\[ *(\d+%)\]", self.output())
        return f"{self.backend} {percents[-1] if percents else 'starts'}"

    def closing(self):
        """The failures' names and pytest's last line."""
        lines = self.output().rstrip().splitlines()
        failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
        return "\n".join([*failures, lines[-1] if lines else "no output"])


def say(text):
    print(text, flush=True)


def run_all(backends, arguments):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    slots = min(len(backends), cores)
    threads = max(1, cores // slots)
    waiting, running, done = list(backends), [], []
    spoke = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                running.append(Run(waiting.pop(0), threads, arguments))
                say(f"{running[-1].backend}: started, {threads} thread(s)")
            time.sleep(0.2)
            for run in [run for run in running if run.ended()]:
                running.remove(run)
                done.append(run)
                say(f"\n===== {run.backend}: {run.seconds:.0f} s =====\n{run.output()}")
            if time.monotonic() - spoke > 30:
                spoke = time.monotonic()
                say("  ".join(run.progress() for run in running))
    finally:
        for run in running:
            run.process.terminate()
    return done


def main():
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", metavar="backend", help=", ".join(BACKENDS))
    backends = parser.parse_args(arguments[:split]).backends or BACKENDS
    if unknown := [name for name in backends if name not in BACKENDS]:
        parser.error(f"unknown backend {unknown[0]!r}: expected one of {', '.join(BACKENDS)}")

    say("ruff check .")
    lint = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT).returncode
    began = time.monotonic()
    runs = run_all(backends, arguments[split + 1 :])
    say(f"All backends: {time.monotonic() - began:.0f} s")
    if lint:
        say("ruff: found problems, see above")
    for run in sorted(runs, key=lambda run: backends.index(run.backend)):
        say(f"{run.backend}: {run.seconds:.0f} s, exit code {run.process.returncode}")
        say(run.closing())
    return int(bool(lint) or any(run.process.returncode for run in runs))


if __name__ == "__main__":
    sys.exit(main())
