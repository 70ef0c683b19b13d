"""What is rehearsed before a capture leaves no trace, whether it ends well or not."""

import copy

import pytest
import torch
from torch import nn

from prudent.training import Chunk, Plan, Step
from prudent.training.run.cuda_graph import rehearsal
from tests.training.gradients.oracle import cross_entropy
from tests.training.worlds import propose

PLAN = Plan(sampling_rate=0.5, steps=9, aggregation=propose())


def everything(step, model, optimizer, counter):
    return copy.deepcopy(
        {
            "release": step.state.state_dict(),
            "position": step.state.number,
            "corruption": step.generator.get_state(),
            "model": model.state_dict(),
            "moments": [optimizer.state[p]["momentum_buffer"] for p in model.parameters()],
            "counter": counter,
        }
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_rehearsal_leaves_no_trace(monkeypatch, fails):
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    torch.manual_seed(0)
    model, counter = nn.Linear(4, 3), torch.zeros(())
    inputs, targets = torch.randn(12, 4), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = Step(PLAN, model, cross_entropy, expected_batch=6)

    def update():
        step([Chunk(inputs, targets)])
        optimizer.step()
        counter.add_(1)

    update()
    before = everything(step, model, optimizer, counter)

    def rehearse():
        with rehearsal(step, model, optimizer, [counter]):
            update()
            update()
            assert not torch.equal(model.weight, before["model"]["weight"])
            if fails:
                raise RuntimeError("out of memory")

    if fails:
        with pytest.raises(RuntimeError, match="out of memory"):
            rehearse()
        assert all(p.grad is None for p in model.parameters())
    else:
        rehearse()
    after = everything(step, model, optimizer, counter)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
