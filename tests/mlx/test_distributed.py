"""MLX's distributed work, each rank a process with the bridge: the ring over TCP, and MPI where it is installed.

What the ranks do is in ranks.py. Here they are started, and must end well, in less time than only a hang takes.
"""
import contextlib
import ctypes.util
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import mlx.core as mx
import pytest

from support import *

HERE = os.path.dirname(os.path.abspath(__file__))
HANG = 240                                                 # seconds; a run of ranks takes a tenth


def bound(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", port))
    return s


@contextlib.contextmanager
def free_ports(count):
    """One behind the other. They stay taken for others: MLX's ring listens where who is bound does not listen."""
    with contextlib.ExitStack() as taken:
        while True:
            first = taken.enter_context(bound(0)).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    taken.enter_context(bound(port))
            except (OSError, OverflowError):
                continue
            yield range(first, first + count)
            return


def program(*arguments):
    return [sys.executable, "-B", os.path.join(HERE, "ranks.py"), *arguments]


def environment(**more):
    """The bridge gets into a rank as it got in here; no launcher's variables but those that are given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLX_RANK", "MLX_HOSTFILE", "OMPI_", "SLURM_"))}
    if "mlxvk_mlx" in sys.modules:
        kept["RANKS_IMPORT"] = "1"
    return {**kept, "MLX_VK_POISON": "1", **more}


def finish(processes, limit=HANG):
    """Waits for all; (status, output) of each. What then still runs is killed, and has the status "hangs"."""
    end = time.monotonic() + limit
    results = []
    for p in processes:
        try:
            output, _ = p.communicate(timeout=max(end - time.monotonic(), 0.1))
            results.append((p.returncode, output))
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            results.append(("hangs", p.communicate()[0]))
    return results


def start(command, stdin=subprocess.DEVNULL, **more):
    return subprocess.Popen(command, env=environment(**more), stdin=stdin, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)


def ring(folder, count, *work, apart=None, **more):
    """apart: what one rank, the last, has in its environment."""
    hosts, meet = folder / "hosts.json", folder / "meet"
    meet.mkdir()
    more |= {"MLX_HOSTFILE": str(hosts), "RANKS_MEET": str(meet)}
    with free_ports(count) as ports:
        hosts.write_text(json.dumps([["127.0.0.1:%d" % port] for port in ports]))
        own = [more | (apart or {} if r == count - 1 else {}) for r in range(count)]
        return finish([start(program(*work), MLX_RANK=str(r), **own[r]) for r in range(count)])


def all_well(results, *work):
    said = "\n".join(f"---- {status} ----\n{output}" for status, output in results)
    for r, (status, output) in enumerate(results):
        assert status == 0 and f"rank {r} of {len(results)} on Device(gpu, 0): {' '.join(work)}\n" in output, said


# ---- which device ---------------------------------------------------------------------------------------------------

LAVAPIPE = sorted(glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"))
CHOSEN = """
import ctypes, mlx.core as mx
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
mx.eval(mx.ones(3) + 1)
print((getenv(b"MLX_VK_DEVICE") or b"none").decode(), mx.default_device())"""


def chosen(folder, devices, **ranks):
    """The device's index, of so many that are all lavapipe."""
    files = ":".join(str(shutil.copy(LAVAPIPE[0], folder / f"{i}.json")) for i in range(devices))
    command = [sys.executable, "-B", "-c", ("import mlxvk_mlx\n" if "mlxvk_mlx" in sys.modules else "") + CHOSEN]
    drivers = {"VK_DRIVER_FILES": files, "VK_ICD_FILENAMES": files, "MLX_VK_DEVICE": ""}
    [(status, output)] = finish([start(command, **{**drivers, **ranks})])
    assert status == 0 and output.endswith(" Device(gpu, 0)\n"), output
    return output.split()[0]


@pytest.mark.skipif(not LAVAPIPE, reason="lavapipe is not where Debian has it")
def test_ranks_share_out_the_devices(tmp_path):
    assert [chosen(tmp_path, 1, MLX_RANK=r) for r in "03"] == ["0", "0"]
    assert [chosen(tmp_path, 2, MLX_RANK=r) for r in "013"] == ["0", "1", "1"]
    assert chosen(tmp_path, 2, OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_RANK="5", MLX_RANK="1") == "0"
    assert chosen(tmp_path, 2, OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_RANK="4", SLURM_LOCALID="0") == "1"
    assert chosen(tmp_path, 2, MLX_RANK="0", MLX_VK_DEVICE="1") == "1"
    assert chosen(tmp_path, 2) == "none"


# ---- collectives ----------------------------------------------------------------------------------------------------

def test_collectives_of_two_ranks(tmp_path):
    all_well(ring(tmp_path, 2, "collectives"), "collectives")


def test_collectives_of_four_ranks(tmp_path):
    all_well(ring(tmp_path, 4, "few_collectives"), "few_collectives")


def test_collectives_where_memory_is_not_mapped(tmp_path):
    all_well(ring(tmp_path, 2, "few_collectives", MLX_VK_FORCE_STAGING="1"), "few_collectives")


# ---- which way: memory that the ranks share, or MLX's ring ----------------------------------------------------------

BY_RING = {"MLX_VK_SHARED_RANKS": "0", "RANKS_SHARED": "0"}
BY_HOST, BY_DEVICES = ({"MLX_VK_SHARED_RANKS": way, "RANKS_SHARED": "1"} for way in "12")
both_ways = pytest.mark.parametrize("way", (BY_HOST, BY_DEVICES), ids=("host", "devices"))
needs_shared = pytest.mark.skipif(MLX < (0, 32), reason="ranks share memory since MLX 0.32")


@needs_shared
@both_ways
@pytest.mark.parametrize("count", (2, 4))
def test_shared_memory(tmp_path, count, way):
    all_well(ring(tmp_path, count, "by_shared_memory", **way), "by_shared_memory")


@needs_shared
@both_ways
def test_shared_memory_where_memory_is_not_mapped(tmp_path, way):
    all_well(ring(tmp_path, 2, "by_shared_memory", MLX_VK_FORCE_STAGING="1", **way), "by_shared_memory")


@needs_shared
def test_collectives_by_devices(tmp_path):
    all_well(ring(tmp_path, 2, "collectives", **BY_DEVICES), "collectives")


@needs_shared
@both_ways
def test_a_rank_that_is_late(tmp_path, way):
    all_well(ring(tmp_path, 3, "late", **way), "late")


@needs_shared
def test_by_host_where_one_rank_asks_for_it(tmp_path):
    apart = {"MLX_VK_SHARED_RANKS": "1"}
    work = "shared", "few_collectives"
    all_well(ring(tmp_path, 3, *work, apart=apart, **BY_DEVICES), *work)


@needs_shared
def test_what_was_sent_by_one_who_left(tmp_path):
    all_well(ring(tmp_path, 2, "sent_and_left"), "sent_and_left")


@needs_shared
def test_ring_where_it_is_asked_for(tmp_path):
    all_well(ring(tmp_path, 2, "shared", "few_collectives", **BY_RING), "shared", "few_collectives")


@needs_shared
def test_ring_where_one_rank_cannot_share(tmp_path):
    results = ring(tmp_path, 3, "shared", "transforms", RANKS_SHARED="0", apart={"MLX_VK_SHARED_RANKS": "0"})
    all_well(results, "shared", "transforms")


# ---- a rank that goes -----------------------------------------------------------------------------------------------

LOST = "RuntimeError: [ring] connection to a peer was lost"


@pytest.mark.skipif(MLX < (0, 32), reason="MLX's ring had no error for this, and waited")
@pytest.mark.parametrize("work, way", (("killed", {}), ("killed", BY_RING), ("killed_small", BY_DEVICES)),
                         ids=("shared", "ring", "devices"))
def test_the_others_of_a_rank_that_is_killed_end(tmp_path, work, way):
    """MLX's ring without the bridge waits here without end, for the collectives behind the one that fails."""
    results = ring(tmp_path, 4, work, **way)
    assert results[1][0] == -signal.SIGKILL, results[1]
    for r in (0, 2, 3):
        assert results[r][0] == 1 and LOST in results[r][1], results[r]


@pytest.mark.skipif(MLX < (0, 32), reason="MLX's ring had no error for this, and waited")
def test_who_catches_it_goes_on_alone(tmp_path):
    first, second = ring(tmp_path, 2, "killed_and_caught")
    assert second[0] == -signal.SIGKILL, second
    assert first[0] == 0 and "rank 0 of 2 on Device(gpu, 0): killed_and_caught" in first[1], first


@needs_shared
@both_ways
def test_a_rank_that_is_killed_while_others_wait_for_it(tmp_path, way):
    first, second, third = ring(tmp_path, 3, "killed_waited_for", **way)
    assert second[0] == -signal.SIGKILL, second
    for r, (status, output) in ((0, first), (2, third)):
        assert status == 0 and f"rank {r} of 3 on Device(gpu, 0): killed_waited_for" in output, output


@pytest.mark.skipif(MLX < (0, 32), reason="MLX's ring had no error for this, and waited")
def test_ranks_that_wait_for_each_other_can_leave(tmp_path):
    assert [status for status, _ in ring(tmp_path, 2, "left")] == [5, 5]


@needs_shared
@both_ways
def test_a_rank_that_waits_for_those_who_left_can_leave(tmp_path, way):
    first, *others = ring(tmp_path, 3, "left_alone", **way)
    assert [status for status, _ in others] == [5, 5]
    assert first[0] == 5 or first[0] == 1 and LOST in first[1], first   # it knows before it has recorded all


# ---- launchers ------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(MLX < (0, 32), reason="mlx.launch started Python itself")
def test_launched_by_mlx(tmp_path):
    """As README says."""
    launch = os.path.join(os.path.dirname(sys.executable), "mlx.launch")
    if not os.path.exists(launch):
        pytest.skip("mlx.launch is not beside Python")
    python, *script = program("transforms")
    bridge = ["-m", "mlxvk_mlx"] if "mlxvk_mlx" in sys.modules else []
    end, open_end = os.pipe()                              # a keyboard at which nobody types
    with free_ports(2) as ports:
        command = [launch, "-n", "2", "-p", str(ports[0]), "--", python, *bridge, *script[1:]]
        [(status, output)] = finish([start(command, stdin=end, RANKS_IMPORT="", RANKS_MEET=str(tmp_path))])
    os.close(end)
    os.close(open_end)
    assert status == 0, output
    for r in range(2):
        assert f"rank {r} of 2 on Device(gpu, 0): transforms" in output, output


def open_mpi():
    """What there is of it: the library's name."""
    try:
        said = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True).stdout
    except OSError:
        return None
    return ctypes.util.find_library("mpi") if "Open MPI" in said else None


@pytest.mark.skipif(not open_mpi(), reason="Open MPI is not here")
def test_mpi():
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", "2", *program("collectives", "linear_layers")]
    [(status, output)] = finish([start(command, RANKS_BACKEND="mpi", MLX_MPI_LIBNAME=open_mpi(), **root)])
    assert status == 0, output
    for r in range(2):
        assert f"rank {r} of 2 on Device(gpu, 0): collectives linear_layers" in output, output


# ---- training, layers, language models ------------------------------------------------------------------------------

def test_training_and_layers(tmp_path):
    work = "training", "linear_layers"
    all_well(ring(tmp_path, 2, *work), *work)


@pytest.mark.parametrize("way", ({}, BY_DEVICES), ids=("chosen", "devices"))
def test_language_models(tmp_path, way):
    pytest.importorskip("mlx_lm")
    all_well(ring(tmp_path, 2, "language_models", **way), "language_models")
