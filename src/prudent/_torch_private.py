"""Everything that is used of what torch keeps private; no other module may import such names.

They can change with any version of torch, and are not covered by its documentation.
"""

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from torch._C._functorch import CVmapInterpreterPtr as CVmapInterpreterPtr
from torch._C._functorch import (
    _add_batch_dim,
    _unwrap_batched,
    is_batchedtensor,
)
from torch._C._functorch import get_unwrapped as get_unwrapped
from torch._C._functorch import (
    is_functorch_wrapped_tensor as is_functorch_wrapped_tensor,
)
from torch._C._functorch import maybe_get_level as maybe_get_level
from torch._C._functorch import peek_interpreter_stack as peek_interpreter_stack
from torch._C._functorch import pop_dynamic_layer_stack as pop_dynamic_layer_stack
from torch._C._functorch import push_dynamic_layer_stack as push_dynamic_layer_stack
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

pytree = _pytree
add_batch_dim, unwrap_batched = _add_batch_dim, _unwrap_batched
function_modes, dispatch_modes = _get_current_function_mode_stack, _get_current_dispatch_mode_stack
batch_norm, norm_base = _BatchNorm, _NormBase
nested_tensor_from_mask_left_aligned = torch._nested_tensor_from_mask_left_aligned
pack_padded_sequence = torch._pack_padded_sequence
copied_to = torch.ops.aten._to_copy.default
fused_weight_norm = torch._weight_norm
storage_uses = torch._C._storage_Use_Count  # one of them by the caller


def is_record(tensor: Tensor) -> bool:
    """Whether a tensor depends on the current record of vmap."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False
