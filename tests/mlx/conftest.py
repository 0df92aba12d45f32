import mlx.core as mx
import pytest


def pytest_configure(config):
    if not mx.is_available(mx.gpu):
        pytest.exit("MLX has no gpu: run through python -m mlxvk_mlx, or with LD_PRELOAD of the bridge", 2)


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins on the gpu's default stream with the same random numbers."""
    mx.set_default_device(mx.gpu)
    mx.random.seed(1)
    yield
    mx.set_default_device(mx.gpu)
