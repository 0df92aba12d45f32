"""python -m mlxvk_mlx: runs a Python program on the stock MLX wheel, with mlxvk as its GPU."""

import importlib.util
import io
import os
import sys
import types

import mlxvk_mlx

USAGE = """\
usage: python -m mlxvk_mlx [OPTION] (-m MODULE | -c CODE | SCRIPT | -) [ARGUMENT ...]

Runs a Python program as "python" itself would, with MLX's GPU on Vulkan:

  python -m mlxvk_mlx -m mlx_lm generate --model DIR --prompt "..."
  python -m mlxvk_mlx train.py --epochs 3
  python -m mlxvk_mlx -c "import mlx.core as mx; print(mx.default_device())"

A program that does "import mlxvk_mlx" before "import mlx.core" needs nothing of this; for one that can be neither
started nor changed so: LD_PRELOAD=$(python -m mlxvk_mlx --library) program

  --info      what is there: MLX, the bridge, the device
  --library   the path of the bridge
  --fallback warn|error|silent   sets MLX_VK_FALLBACK
  --stats     sets MLX_VK_STATS=1
  --help

Environment:
  MLX_VK_FALLBACK=warn|error|silent   what MLX should do when mlxvk has not got an operation
  MLX_VK_FALLBACK_FOR=Exp,FFT         these fall back although mlxvk has them
  MLX_VK_STATS=1                      at exit a table of what ran on the GPU and what did not
  MLX_VK_DEVICE=index|name            the Vulkan device; unset, a launcher's ranks share out the host's
  MLXVK_MLX_LIBRARY=path              another bridge
"""


def main_module(name, path=None, spec=None):
    module = types.ModuleType("__main__")
    module.__dict__.update(__name__="__main__", __builtins__=__builtins__, __spec__=spec)
    if path:
        module.__file__ = path
    if spec:
        module.__package__, module.__loader__, module.__cached__ = spec.parent, spec.loader, spec.cached
    elif not name:
        del module.__spec__
    sys.modules["__main__"] = module
    return module.__dict__


def run_module(name, arguments):
    sys.path[0] = os.getcwd()
    sys.argv = ["-m"] + arguments
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
        code = spec.loader.get_code(spec.name) if spec else None
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, mlxvk_mlx.Error):
            raise
        sys.exit("mlxvk_mlx: cannot run module %s: %s" % (name, error))
    if code is None:
        sys.exit("mlxvk_mlx: no module named %s that could be run" % name)
    sys.argv[0] = spec.origin
    exec(code, main_module(name, spec.origin, spec))


def run_script(path, arguments):
    sys.argv = [path] + arguments
    if path == "-":
        sys.path[0] = ""
        source, path = sys.stdin.read(), "<stdin>"
    elif os.path.isdir(path):
        sys.path[0] = path
        return run_folder(path, arguments)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        try:
            with io.open_code(os.path.abspath(path)) as file:
                source = file.read()
        except OSError as error:
            sys.exit("mlxvk_mlx: %s: %s" % (path, error.strerror))
    exec(compile(source, path, "exec"), main_module(path, path))


def run_folder(path, arguments):
    spec = importlib.util.spec_from_file_location("__main__", os.path.join(path, "__main__.py"))
    if not os.path.isfile(spec.origin):
        sys.exit("mlxvk_mlx: no __main__.py in " + path)
    exec(spec.loader.get_code("__main__"), main_module(path, spec.origin, spec))


def run_code(code, arguments):
    sys.path[0] = ""
    sys.argv = ["-c"] + arguments
    exec(compile(code, "<string>", "exec"), main_module("-c"))


def info():
    stats = mlxvk_mlx.stats()
    print("MLX       %s, %s" % (".".join(map(str, mlxvk_mlx.mlx_version())), mlxvk_mlx._mlx_folder()))
    print("bridge    %s" % mlxvk_mlx.library())
    print("device    %s" % (mlxvk_mlx.device() or "none: MLX uses the CPU"))
    if mlxvk_mlx.problem():
        print("problem   %s" % mlxvk_mlx.problem())
    if mlxvk_mlx.device() and stats.get("driver"):
        print("driver    %s" % stats["driver"])
    return 0 if mlxvk_mlx.device() else 1


def value(words, what):
    if not words:
        sys.exit("mlxvk_mlx: %s needs an argument" % what)
    return words.pop(0)


def main():
    words = sys.argv[1:]
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(USAGE, end="")
            return 0
        if word == "--library":
            print(mlxvk_mlx.library())
            return 0
        if word == "--info":
            mlxvk_mlx._load()
            return info()
        if word == "--stats":
            os.environ["MLX_VK_STATS"] = "1"
        elif word == "--fallback":
            os.environ["MLX_VK_FALLBACK"] = value(words, word)
        elif word.startswith("-m") and not word.startswith("--"):
            name = word[2:] or value(words, word)
            mlxvk_mlx._load()
            return run_module(name, words)
        elif word.startswith("-c") and not word.startswith("--"):
            code = word[2:] or value(words, word)
            mlxvk_mlx._load()
            return run_code(code, words)
        elif word == "-" or not word.startswith("-"):
            mlxvk_mlx._load()
            return run_script(word, words)
        else:
            sys.exit("mlxvk_mlx: unknown option %s (--help lists them)" % word)
    sys.stderr.write(USAGE)
    return 2


if __name__ == "__main__":
    try:
        status = main()
    except mlxvk_mlx.Error as error:
        sys.exit(str(error))
    sys.exit(status)
