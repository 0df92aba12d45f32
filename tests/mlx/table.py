"""Writes the table of MLX's primitives into README.md, from what the bridge says that it does with each, and from what
the tests saw it do.

    build/mlx/bin/python tests/mlx/table.py [--check] README.md       (make mlx-table)

It stands between two marks. With --check nothing is written; the exit status says whether it is current. What the
bridge has as native must have run natively in some test since: runner.py keeps what each file of tests saw. Without a
whole run of make test-mlx there is nothing to hold it against, and --check fails.
"""

import json
import os
import pathlib
import sys
import textwrap

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import mlxvk_mlx  # noqa: E402

BEGIN, END = "<!-- primitives: made by make mlx-table -->\n", "<!-- end of primitives -->\n"
MEANING = {
    "native": "native: runs on the GPU",
    "layout": "layout: the same memory seen otherwise, by MLX's own code on the host; a copy, where needed, on the GPU",
    "host": "host: by MLX's own eval_cpu, and no data is read",
    "unreached": "unreached: native, but MLX's front end refuses it before",
    "fallback": "fallback: MLX's own code on the CPU, counted",
}


def table(primitives):
    lines = ["| what happens | primitives |", "|---|---|"]
    states = list(MEANING) + sorted({p["state"] for p in primitives} - set(MEANING))
    for state in states:
        here = sorted((p for p in primitives if p["state"] == state), key=lambda p: p["name"])
        if not here:
            continue
        words = ["%s (%s)" % (p["name"], p["note"]) if p.get("note") else p["name"] for p in here]
        what, _, meaning = MEANING.get(state, state).partition(":")
        lines.append("| **%s**, %d%s | %s |" % (what, len(here), ":" + meaning if meaning else "", ", ".join(words)))
    return "\n".join(lines) + "\n"


def unseen(primitives):
    """Primitives that the table calls native and that no test saw run so; raises where tests did not run."""
    here = pathlib.Path(__file__).resolve().parent
    seen = pathlib.Path(mlxvk_mlx.library()).parent / "seen"
    ran = set()
    for test in sorted(here.glob("test_*.py")):
        path = seen / (test.stem + ".json")
        if not path.exists():
            sys.exit("%s has not run: make test-mlx, then this" % test.name)
        ran |= set(json.loads(path.read_text()))
    return [p["name"] for p in primitives if p["state"] == "native" and p["name"] not in ran]


def main():
    check = "--check" in sys.argv
    path = pathlib.Path([word for word in sys.argv[1:] if word != "--check"][0])
    text = path.read_text()
    if BEGIN not in text or END not in text:
        sys.exit("%s: no marks for the table: %s%s" % (path, BEGIN, END))
    head, rest = text.split(BEGIN, 1)
    old, tail = rest.split(END, 1)
    new = table(mlxvk_mlx.primitives())
    if check:
        never = unseen(mlxvk_mlx.primitives())
        if never:
            sys.exit("native by the bridge's table, and in no test: " + ", ".join(never))
        if old != new:
            sys.exit("%s: the table of primitives is not what the bridge says; make mlx-table writes it\n%s"
                     % (path, textwrap.indent(new, "  ")))
        print("%s: the table of primitives is current" % path)
    elif old != new:
        path.write_text(head + BEGIN + new + END + tail)
        print("%s: written" % path)


main()
