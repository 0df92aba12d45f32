"""Puts the stock MLX wheel on Vulkan: import this before mlx.core, and mx.gpu is mlxvk.

    import mlxvk_mlx
    import mlx.core as mx
    print(mx.default_device(), mlxvk_mlx.device())

or leave the program as it is and run it with "python -m mlxvk_mlx" (see --help there).

The bridge is one shared library that puts mlxvk in the place of MLX's GPU backend, when it is loaded and before MLX does
its first work; that is all that this package does. MLXVK_MLX_LIBRARY names another library file.
"""

import ctypes
import importlib.util
import json
import os
import pathlib
import re
import sys

__all__ = ["device", "is_available", "kernels", "library", "mlx_version", "primitives", "problem", "reset_stats", "stats"]

NAME = "libmlxvk_mlx.so"
TESTED = "0.32.4"

_bridge = None


class Error(ImportError):
    """MLX cannot be put on Vulkan; the text says why, and what to do."""


def library():
    """The path of the bridge: what LD_PRELOAD takes for a program that cannot import this package."""
    named = os.environ.get("MLXVK_MLX_LIBRARY")
    here = pathlib.Path(__file__).resolve().parent
    if named:
        places = [pathlib.Path(named).absolute()]
    else:
        places = [pathlib.Path(sys.prefix) / NAME, here / NAME, here.parents[2] / "build" / "mlx" / NAME]
    for place in places:
        if place.is_file():
            return str(place)
    raise Error("mlxvk_mlx: there is no bridge at " + " or ".join(map(str, places)) + ' ("make mlx" builds it)')


def _mlx_folder():
    try:
        spec = importlib.util.find_spec("mlx")
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (pathlib.Path(folder) / "lib" / "libmlx.so").is_file():
            return pathlib.Path(folder)
    raise Error("mlxvk_mlx: no MLX for Linux in this environment (pip install 'mlx[cpu]==%s')" % TESTED)


def mlx_version():
    """The version of the wheel, as three numbers, without importing it."""
    header = _mlx_folder() / "include" / "mlx" / "version.h"
    found = dict(re.findall(r"#define MLX_VERSION_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    return tuple(int(found[part]) for part in ("MAJOR", "MINOR", "PATCH"))


def _loaded_libmlx():
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return {line.split(None, 5)[5].strip() for line in maps if line.rstrip().endswith("/libmlx.so")}


def _preloaded():
    process = ctypes.CDLL(None)
    return process if hasattr(process, "mlxvk_mlx_stats") else None


def _load():
    """Makes the bridge part of this process, once."""
    global _bridge
    if _bridge is not None:
        return
    bridge = _preloaded()
    if bridge is None:
        if "mlx.core" in sys.modules or _loaded_libmlx():
            raise Error("mlxvk_mlx: mlx.core is imported already, and keeps the device it has. Import mlxvk_mlx before it, "
                        "or run the program with python -m mlxvk_mlx, or with LD_PRELOAD=" + library())
        path = library()
        try:
            ctypes.CDLL(str(_mlx_folder() / "lib" / "libmlx.so"))
            bridge = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
        except OSError as error:
            raise Error("mlxvk_mlx: %s cannot be loaded: %s" % (path, error)) from None
        if not hasattr(bridge, "mlxvk_mlx_stats"):
            raise Error("mlxvk_mlx: %s is not mlxvk's bridge" % path)
    bridge.mlxvk_mlx_problem.restype = ctypes.c_char_p
    if not bridge.mlxvk_mlx_problem():
        _check_match()
    for name in ("mlxvk_mlx_stats", "mlxvk_mlx_primitives", "mlxvk_mlx_kernels"):
        if hasattr(bridge, name):
            getattr(bridge, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            getattr(bridge, name).restype = ctypes.c_int
    _bridge = bridge
    is_available()                                         # which says what is missing


def _check_match():
    """The bridge must be in a process with this environment's MLX and no other."""
    folder, loaded = _mlx_folder(), _loaded_libmlx()
    wheel = str((folder / "lib" / "libmlx.so").resolve())
    if loaded != {wheel}:
        raise Error("mlxvk_mlx: the bridge is in %s, this environment's MLX is %s; set LD_LIBRARY_PATH=%s"
                    % (", ".join(sorted(loaded)) or "no MLX", wheel, folder / "lib"))


def problem():
    """What keeps the bridge out of MLX, which goes on with the CPU then; an empty text when nothing does."""
    _load()
    return _bridge.mlxvk_mlx_problem().decode("utf-8", "replace")


def _json(function):
    _load()
    if not hasattr(_bridge, function):
        raise Error("mlxvk_mlx: the bridge has no " + function)
    size = 1 << 16
    while True:
        text = ctypes.create_string_buffer(size)
        needed = getattr(_bridge, function)(text, size)
        if needed < 0:
            raise RuntimeError("%s failed (%d)" % (function, needed))
        if needed < size and (needed or text.value):
            return json.loads(text.value.decode("utf-8", "replace"))
        if size > 1 << 28:
            raise RuntimeError(function + " gives no end of text")
        size = max(4 * size, needed + 1)


def stats():
    """What ran so far: counts of operations, dispatches, submissions; by primitive what was native and what fell back."""
    return _json("mlxvk_mlx_stats")


def reset_stats():
    """Counts from zero again."""
    _load()
    _bridge.mlxvk_mlx_reset_stats()


def primitives():
    """What the bridge does with each of MLX's primitives: a list of {"name", "state", "note"}."""
    return _json("mlxvk_mlx_primitives")


def kernels():
    """Which of mlxvk's kernels ran: a list of {"kernel", "count", "ns"}, ns only with MLX_VK_PROFILE=1."""
    return _json("mlxvk_mlx_kernels")


def device():
    """The name of the Vulkan device; an empty text when there is none."""
    name = stats().get("device", "")
    return "" if name == "none" else name


def is_available():
    return bool(device())


def _run_as_main():
    """Is it "python -m mlxvk_mlx" that imports this? Then __main__ decides when to load."""
    words = getattr(sys, "orig_argv", [])
    return sys.argv[:1] == ["-m"] and any(a == "-m" and b == __name__ for a, b in zip(words, words[1:]))


if not _run_as_main():
    _load()
