"""What a run came from: command, code, libraries, machine, process. No host or user names."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "torch", "torchvision", "numpy", "scikit-learn", "sentencepiece", "sacrebleu", "mlflow",
)  # fmt: skip
SOURCE = Path(__file__).parent.parent


def command() -> str:
    """The command line of this process, with a bare `python` and no password."""
    interpreter, *arguments = sys.orig_argv
    return without_passwords(shlex.join([Path(interpreter).name, *arguments]))


def without_passwords(text: str) -> str:
    """`scheme://user:password@host` without the password."""
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


@lru_cache
def git() -> dict[str, str]:
    """The commit of the code and whether it was changed since; `unknown` outside a checkout."""

    def ask(*arguments: str) -> str:
        asked = ["git", "-C", str(SOURCE), *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": str(bool(ask("status", "-s"))).lower()}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "dirty": "unknown"}


@lru_cache
def versions() -> str:
    """Python's and the libraries' versions, as JSON."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "absent"
    return json.dumps(found)


@lru_cache
def machine() -> str:
    """CPU model, cores, memory and accelerators, as JSON."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return json.dumps(
        {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_gib": _memory_gib(),
            "gpus": gpus,
            "system": f"{platform.system()} {platform.machine()}",
        }
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def process(pid: int) -> str | None:
    """A name for a process that no other one ever had, on this machine or another.

    None where there is no such process. Raises OSError on a system without /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
    return f"{boot} {namespace} {pid} {start}"


def process_is_gone(name: str) -> bool:
    """Whether a process named by `process` on this machine, since its last boot, has ended.

    False where that cannot be known (another machine, another container, no /proc).
    """
    try:
        boot, namespace, pid, _ = name.split()
        own = process(os.getpid())
        here = own is not None and own.split()[:2] == [boot, namespace]
        return here and process(int(pid)) != name
    except (OSError, ValueError):
        return False
