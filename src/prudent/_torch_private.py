"""Everything that is used of what torch keeps private; no other module may import such names.

They can change with any version of torch, and are not covered by its documentation.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from torch._C._functorch import (
    _add_batch_dim,
    _unwrap_batched,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)
from torch._C._functorch import get_unwrapped as get_unwrapped
from torch._C._functorch import maybe_get_level as maybe_get_level
from torch._functorch.pyfunctorch import VmapInterpreter as VmapInterpreter
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter as retrieve_current_functorch_interpreter,
)
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

pytree = _pytree
add_batch_dim, unwrap_batched = _add_batch_dim, _unwrap_batched
function_modes = _get_current_function_mode_stack
batch_norm, norm_base = _BatchNorm, _NormBase
nested_tensor_from_mask_left_aligned = torch._nested_tensor_from_mask_left_aligned
pack_padded_sequence = torch._pack_padded_sequence
copied_to = torch.ops.aten._to_copy.default
fused_weight_norm = torch._weight_norm


def is_record(tensor: Tensor) -> bool:
    """Whether a tensor depends on the current record of vmap."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def is_traced() -> bool:
    """Whether operations are being traced, for a compiled program."""
    return get_proxy_mode() is not None


def is_intercepted() -> bool:
    """Whether a mode sees every operation, as while a program is traced.

    Not one that `passes_on` what it sees: kernels of our own may then run as they do without it.
    """
    mode = _get_current_dispatch_mode()
    return not (mode is None or getattr(mode, "passes_on", False))


def compile_graph(graph: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
    """Compile a graph to fused kernels: C++ on the CPU, Triton on a GPU."""
    import torch._inductor as compiler  # slow to import, and only compiled runs need it

    on_device = any(example.is_cuda for example in examples)
    with _near_fusions() if on_device else nullcontext():
        compiled: Callable[..., Any] = compiler.compile(graph, [*examples])
    return compiled


def _near_fusions() -> AbstractContextManager[Any]:
    """Keep the compiler from computing in the forward pass what only the backward pass needs.

    It would do so to read a value once instead of twice, and then keep both until they are needed:
    for a normalisation that is a copy of its input. Ordinary training is compiled as two programs,
    and has no such choice.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class Near(InductorChoices):
        @staticmethod
        def can_fuse_vertical(scheduler: Any, node1: Any, node2: Any, *rest: Any) -> bool:
            are_far = getattr(scheduler, "are_long_distant_nodes", None)  # not in every version
            return are_far is None or not are_far(node1, node2)

    handler: AbstractContextManager[Any] = V.set_choices_handler(Near())
    return handler
