"""The gradient corruptions on an accelerator: same values, never read back, capturable."""

import contextlib

import pytest
import torch

from tests.lab.corruption.test_gradients import DETERMINISTIC, KINDS, batch, flat, rows

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)


@contextlib.contextmanager
def no_reading_back():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_device(gradients):
    return {name: gradient.cuda() for name, gradient in gradients.items()}


@pytest.mark.parametrize("kind", DETERMINISTIC)
def test_the_values_are_those_of_the_host(kind):
    gradients, mask, valid = batch(6), rows(0, 1, 0, 1, 1, 0), rows(1, 1, 1, 1, 0, 0)
    host = kind(0.5)(gradients, mask, valid=valid)
    device = kind(0.5)(on_device(gradients), mask.cuda(), valid=valid.cuda())
    torch.testing.assert_close(flat(device).cpu(), flat(host))


def test_noise_has_the_given_variance_on_bad_rows_only():
    (noise,) = (kind for kind in KINDS if kind not in DETERMINISTIC)
    mask = rows(0, 1, 1, 0).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    after = noise(0.5)({"weight": torch.zeros(4, 400, 400).cuda()}, mask, generator=generator)
    assert abs(float(after["weight"][mask].var()) / 100 - 1) < 0.02
    assert not after["weight"][~mask].any()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_back_once_warm(kind):
    gradients, mask = on_device(batch(6)), rows(0, 1, 0, 1, 1, 0).cuda()
    kind(0.5)(gradients, mask, valid=~mask)
    with no_reading_back():
        kind(0.5)(gradients, mask, valid=~mask)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_follows_the_mask_of_each_batch(kind):
    gradients, mask = on_device(batch(6)), rows(0, 1, 0, 1, 1, 0).cuda()
    corruption = kind(0.5)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        corruption(gradients, mask)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        after = corruption(gradients, mask)
    for next_mask in (rows(1, 0, 0, 0, 0, 1), rows(0, 0, 0, 0, 0, 0)):
        mask.copy_(next_mask)
        graph.replay()
        changed = (flat(after) != flat(gradients)).any(1)
        assert changed.cpu().equal(next_mask)
