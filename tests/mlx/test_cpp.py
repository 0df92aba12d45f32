"""Programs in C++ that are linked to MLX, with the bridge preloaded: what Python never calls."""
import os
import pathlib
import subprocess

import mlx.core as mx
import pytest

import mlxvk_mlx

OF_A_CALLER = r"""
#include <cstdio>
#include <thread>
#include <vector>

#include "mlx/mlx.h"

using namespace mlx::core;

static int failed;
#define CHECK(what) do { if (!(what)) { failed++; std::printf("line %d: %s\n", __LINE__, #what); } } while (0)

/* Memory of the program's, and how often just that was given back. */
struct Memory {
  std::vector<float> data = std::vector<float>(4096, 1);
  int back = 0, wrong = 0;
  array made() {
    return array(data.data(), Shape{4096}, float32, [this](void* p) { (p == data.data() ? back : wrong)++; });
  }
};

int main() {
  CHECK(default_device() == Device::gpu);
  Memory read, given, in_thread, unused;
  {
    array a = read.made();
    CHECK(a.data<float>() == read.data.data());
    read.data[0] = 5;
    CHECK(sum(a).item<float>() == 4100);
    CHECK(a.data<float>() == read.data.data() && a.data<float>()[0] == 5);
    CHECK(sum(slice(a, {1}, {4096}, {2})).item<float>() == 2048);
    CHECK(sum(add(a, a, Device::cpu), Device::gpu).item<float>() == 8200);
    CHECK(read.back == 0);
  }
  {
    array b = negative(given.made());                      // nobody else has the operand
    eval(b);
    CHECK(b.data<float>()[7] == -1 && given.data[7] == 1);
  }
  {
    array c = in_thread.made();
    async_eval(c + 1.0f);
    std::thread([held = std::move(c)] {}).join();
  }
  unused.made();
  synchronize();
  for (Memory* m : {&read, &given, &in_thread, &unused}) CHECK(m->back == 1 && !m->wrong);

  clear_cache();
  auto& memory = allocator::allocator();
  memory.free(memory.malloc(8192));
  const size_t cached = get_cache_memory();                // none where MLX's own memory is the host's
  auto small = memory.malloc(6000);
  CHECK(memory.size(small) >= std::max<size_t>(cached, 6000));
  memory.free(small);
  std::printf("%d failed\n", failed);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    wheel, folder = pathlib.Path(mx.__file__).parent, tmp_path_factory.mktemp("cpp")
    (folder / "caller.cpp").write_text(OF_A_CALLER)
    library = str(wheel / "lib")
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-isystem", str(wheel / "include"), str(folder / "caller.cpp"),
                    "-L" + library, "-lmlx", "-Wl,-rpath," + library, "-Wl,--allow-shlib-undefined", "-o", str(folder / "caller")],
                   check=True)
    return str(folder / "caller")


@pytest.mark.parametrize("staging", ("0", "1"))
def test_memory_of_a_caller(program, staging):
    got = subprocess.run([program], env={**os.environ, "LD_PRELOAD": mlxvk_mlx.library(), "MLX_VK_FORCE_STAGING": staging},
                         timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert got.returncode == 0 and got.stdout == "0 failed\n", got.stdout + got.stderr
