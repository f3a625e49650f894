"""C++ libraries that are compiled on first use, for the processor of this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import glob
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from official.io import writing

# -----------------------------------------------------------------------------------------------------------
# Libraries
#
# The name of a library has a hash of its sources, flags, compiler, linked libraries and the CPU. So it is
# never out of date, and machines that share a home folder do not use each other's. Its code runs in this
# process, so it must be owned by this user or root, and match the sha256 file next to it. A damaged one is
# compiled again.


_COMPILERS = ("c++", "g++", "clang++")
_OF_CPU = ("model name", "flags", "Features", "CPU part", "CPU implementer")  # that affect generated code
_DIGEST = ".sha256"  # after the name of a library: the file with its sha256


class NotBuilt(Exception):
    """A library could not be compiled; the message is one line."""


class Recipe(NamedTuple):
    """Sources, headers and flags that a library is compiled from.

    Attributes:
      name: of the file, in front of its digest.
      sources: {path of a C++ file: flags of the compiler}.
      headers: paths of the files that they include.
      link_flags: flags of the linker.
      made_for: further things that a library depends on, such as a version.
    """

    name: str
    sources: Mapping[str, Sequence[str]]
    headers: Sequence[str]
    link_flags: Sequence[str]
    made_for: str


def built(recipe: Recipe, timeout_secs: float, before: Callable[[], object] = lambda: None) -> str:
    """Returns the path of a library; compiles it if it is missing.

    If several processes need it at once, one compiles it and the others wait.

    Args:
      recipe: sources and flags of the library.
      timeout_secs: limit for compiling, and for waiting for another process that compiles.
      before: called before it is compiled.

    Raises:
      NotBuilt: if there is no compiler, it fails or takes too long, or there is no folder for the library.
    """
    compiler = find_compiler()
    name = f"{recipe.name}-{_digest(recipe, compiler)}.so"
    try:
        path = os.path.join(writing.private("native"), name)
        if _is_whole(path):
            return path
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(writing.locked(path + ".lock", timeout_secs, 0o600))
            except BlockingIOError:
                raise NotBuilt(f"another process compiles it for more than {timeout_secs:.0f} s") from None
            if not _is_whole(path):
                before()
                _compile(recipe, compiler, path, timeout_secs)
    except OSError as error:
        raise NotBuilt(f"{error.filename or name}: {error.strerror or error}") from None
    return path


def _is_whole(path: str) -> bool:
    """Tells whether a library exists unchanged. Raises OSError if it may be another user's."""
    try:
        data, said = _read_own(path), _read_own(path + _DIGEST)
    except FileNotFoundError:
        return False
    return hashlib.sha256(data).hexdigest() == said.decode(errors="replace").strip()


def _read_own(path: str) -> bytes:
    """Returns the content of a file of this user or root, which is no link. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        writing.check_owner(path, os.fstat(descriptor))
        return file.read()


def find_compiler() -> str:
    """Returns the path of the C++ compiler: $CXX, else the first one found. Raises NotBuilt."""
    asked = os.environ.get("CXX")
    if found := next(filter(None, map(shutil.which, [asked] if asked else _COMPILERS)), None):
        return found
    raise NotBuilt(f"there is no C++ compiler ({f'CXX={asked}' if asked else ', '.join(_COMPILERS)})")


def _digest(recipe: Recipe, compiler: str) -> str:
    """Returns a digest of all inputs of a library's code, 16 hexadecimal digits."""
    flags = [flag for flags in recipe.sources.values() for flag in flags]
    made_with = [recipe.made_for, compiler, _run([compiler, "--version"], timeout_secs=60)]
    cpu = _cpu_info()
    runs_on = [platform.machine(), platform.processor(), *(cpu.get(key, "") for key in _OF_CPU)]
    texts = [*flags, *recipe.link_flags, *made_with, *runs_on, *platform.libc_ver()]
    parts = [text.encode() for text in texts]
    parts += [pathlib.Path(path).read_bytes() for path in (*recipe.sources, *recipe.headers)]
    return hashlib.sha256(b"".join(part + b"\0" for part in parts)).hexdigest()[:16]


def _cpu_info() -> dict[str, str]:
    """Returns the kernel's description of the first CPU: name, instructions, ..; {} where there is none."""
    lines: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            lines.setdefault(key.strip(), value.strip())
    return lines


def _compile(recipe: Recipe, compiler: str, path: str, timeout_secs: float) -> None:
    """Compiles a library in a temporary folder, and moves the complete file out of it."""
    prefix = os.path.basename(path) + ".tmp-"
    for left in glob.glob(glob.escape(os.path.join(os.path.dirname(path), prefix)) + "*"):
        shutil.rmtree(left, ignore_errors=True)  # by a process that was killed
    with tempfile.TemporaryDirectory(prefix=prefix, dir=os.path.dirname(path)) as folder:
        objects = {os.path.join(folder, f"{index}.o"): each for index, each in enumerate(recipe.sources)}
        commands = [
            [compiler, "-fPIC", "-c", source, *recipe.sources[source], "-o", name]
            for name, source in objects.items()
        ]
        with concurrent.futures.ThreadPoolExecutor(len(commands)) as executor:
            list(executor.map(lambda command: _run(command, timeout_secs), commands))
        library = os.path.join(folder, "library.so")
        _run([compiler, "-shared", *objects, *recipe.link_flags, "-o", library], timeout_secs)
        os.chmod(library, 0o600)  # whatever the umask
        digest = os.path.join(folder, "sha256")
        with open(digest, "w", encoding="ascii") as out:
            out.write(hashlib.sha256(pathlib.Path(library).read_bytes()).hexdigest() + "\n")
        os.chmod(digest, 0o600)
        writing.publish(library, path)
        writing.publish(digest, path + _DIGEST)  # last: it makes the library valid


def _run(command: list[str], timeout_secs: float) -> str:
    """Runs a command and returns its output. Raises NotBuilt where it fails."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_secs, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotBuilt(f"{name} did not end within {timeout_secs:.0f} s") from None
    except OSError as error:
        raise NotBuilt(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines()]
        wrong = [line for line in lines if "error" in line.lower()] or lines or ["it says nothing"]
        raise NotBuilt(f"{name} ended with code {done.returncode}: {wrong[0][:200]}")
    return done.stdout


# -----------------------------------------------------------------------------------------------------------
# Processor


# Instruction sets that matter for matrix products, by the kernel's names.
INSTRUCTIONS = (
    *("avx2", "fma", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "sve", "bf16", "i8mm"),
)

_ADD_IN_32_BITS = {"avx_vnni", "avx512_vnni", "amx_int8"}  # products of bytes, on x86


class Processor(NamedTuple):
    """A processor.

    Attributes:
      name: as the processor says it.
      cores: that this process may use.
      instructions: those of `INSTRUCTIONS` that it has.
    """

    name: str
    cores: int
    instructions: tuple[str, ...]


def saturates_int8(cpu: Processor) -> bool:
    """Tells whether a processor adds two products of unsigned and signed bytes in 16 bits: x86 without VNNI.
    These saturate; with signed numbers of 7 bits, up to 63, they do not.

    Source: oneDNN's documentation, "Nuances of int8 computations".
    """
    return "avx2" in cpu.instructions and not _ADD_IN_32_BITS.intersection(cpu.instructions)


def processor() -> Processor:
    """Returns the processor of this machine. Without the kernel's description, its name comes from Python's
    platform module and its instructions are unknown."""
    lines = _cpu_info()
    name = lines.get("model name") or platform.processor() or platform.machine()
    flags = (lines.get("flags") or lines.get("Features", "")).split()
    found = tuple(each for each in INSTRUCTIONS if each in flags)
    return Processor(name, len(os.sched_getaffinity(0)), found)
