"""What tests need of the machine: asked for at the start of a run, and by one fact.

A test whose need is not met fails. It is not left out, since a promise would go untested.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Spark's executors, and clients of several hosts, have addresses of their own."""
PROGRAMS = {
    "bash": "bash: commands of the docs",
    "cc": "gcc",
    "clang": "clang, with libclang-rt-14-dev: fuzzing",
    "git": "git: mutants",
    "hostname": "hostname: hosts of their own",
    "ip": "iproute2: hosts of their own",
    "java": "default-jre-headless: Spark",
    "javac": "default-jdk-headless: BookKeeper's client",
    "mvn": "maven: BookKeeper's client",
    "prometheus": "prometheus: dashboards",
    "promtool": "prometheus: alerts",
    "unshare": "util-linux: hosts of their own",
}
"""By program: its package in Debian, and what needs it."""
ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")
TUN = Path("/dev/net/tun")
"""The kernel's devices whose packets a program passes on: support/switch.py."""
DESCRIPTORS_MIN = 2048


def missing() -> list[str]:
    """Return a line for each need that this machine does not meet, with what to do."""
    return [*_programs(), *_files(), *_mounts(), *_hosts(), *_addresses(), *_descriptors()]


def _programs() -> Iterator[str]:
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            yield f"{program}; apt-get install {package}"


def _files() -> Iterator[str]:
    if not ZOOKEEPER.exists():
        yield f"{ZOOKEEPER}; apt-get install zookeeper: metadata in ZooKeeper"


def _mounts() -> Iterator[str]:
    need = "the right to mount a file system, which full disks are tested on: run as root"
    if os.geteuid() != 0:
        yield need
        return
    with tempfile.TemporaryDirectory(prefix="quire-mount-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "quire-test", folder]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        else:
            yield f"{need}, in a container with CAP_SYS_ADMIN ({done.stderr.strip()})"


def _hosts() -> Iterator[str]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return  # said already
    need = "network namespaces, as hosts of their own"
    name = f"quire{os.getpid()}-probe"  # hosts.remove_leftovers() knows such names
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=True)
    else:
        yield f"{need}: run in a container with CAP_SYS_ADMIN ({done.stderr.strip()})"
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as wrong:
        yield f"{need}: {wrong}; run in a container with --device {TUN} and CAP_NET_ADMIN"


def _addresses() -> Iterator[str]:
    for address in ADDRESSES:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError as wrong:
                yield f"the address {address} ({wrong}): ip addr add {address}/8 dev lo"


def _descriptors() -> Iterator[str]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < DESCRIPTORS_MIN:
        yield f"{DESCRIPTORS_MIN} open files for a process, where {most} are allowed: ulimit -Hn"
