"""Before any test imports regard: one torch thread, and every jaxtyping shape checked by beartype.

`REGARD_TEST_THREADS=2` is for `make test-cpus`.

`REGARD_SHAPE_CHECKS=0` leaves the check off. It replaces our error messages by its own and breaks
torch.compile, so the tests of those live in tests/unhooked, the attacks of `make fuzz` in tests/fuzz, and
both run in a process of their own.
"""

import os
import sys

# Workers share few cores: threads that wait for one another were a thousand times slower than one.
os.environ["OMP_NUM_THREADS"] = os.environ.get("REGARD_TEST_THREADS", "1")

CPU_LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
SHAPE_CHECKS = os.environ.get("REGARD_SHAPE_CHECKS", "1") != "0"

early = [name for name in sys.modules if name == "regard" or name.startswith("regard.")]
if early:
    raise RuntimeError(f"{early} imported before tests/conftest.py: their shapes would go unchecked.")

if SHAPE_CHECKS:
    from jaxtyping import install_import_hook

    install_import_hook("regard", "beartype.beartype")
    collect_ignore = ["unhooked", "fuzz"]

import hypothesis  # noqa: E402  # the hook comes first
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# No timing is asserted in a test, so an example may take as long as the machine needs.
hypothesis.settings.register_profile("regard", deadline=None)
hypothesis.settings.load_profile("regard")


def pytest_report_header() -> str:
    """What this machine is, or is made to look like."""
    limits = [f"{name}={os.environ[name]}" for name in CPU_LIMITS if name in os.environ]
    kind = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} on {kind}, threads: {torch.get_num_threads()}. {' '.join(limits)}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch as pytest-randomly seeds Python, so `--randomly-seed` repeats a failure whole."""
    torch.manual_seed(int(item.config.getoption("randomly_seed", default=0)))
