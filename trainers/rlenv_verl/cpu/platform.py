"""A platform named `cpu`, registered in veRL's public platform registry.

Loaded by `VERL_USE_EXTERNAL_MODULES` in every process that imports verl, and chosen by `VERL_PLATFORM=cpu`.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from rlenv_verl.cpu import answer_to_vllm


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

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # Expected: the resource that this platform schedules on. Actual: veRL counts only "GPU" and "NPU"
        # (ResourcePoolManager._check_resource_available in single_controller/ray/base.py), so Ray is started with
        # one logical GPU. Remove when veRL asks the platform for the name there.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


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
