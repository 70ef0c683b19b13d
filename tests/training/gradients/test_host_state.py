"""What a model and its loss keep on the host neither reaches other passes nor stale programs."""

import array
import functools
import random
import threading
from contextlib import ExitStack
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

import prudent
from prudent._torch_private import TorchDispatchMode
from prudent.training import Chunk, Execution, Plan, Step, Sum, fit
from prudent.training.captured import Captured, kind_of
from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.host_state import HostState, KeptRecordError
from prudent.training.keystream import Key

CUDA = pytest.param(
    "graph", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)
WAYS = ["eager", "repeated", CUDA]
SLOPE = 1.0


def squared(outputs, targets):
    return (outputs[:, 0] - targets) ** 2


class Weighted:
    """A loss with a public weight that may be annealed."""

    def __init__(self):
        self.weight = 1.0
        self.table = {"sign": [1.0]}

    def __call__(self, outputs, targets):
        return self.weight * self.table["sign"][0] * squared(outputs, targets)


class Staged(nn.Module):
    """A model in which every kind of public state decides about the sign of its output."""

    kind = 1

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 1, bias=False)
        self.stage = 0
        self.factor = 1.0
        self.names = {"sign": {"of": 1}}
        self.signs = [1, [1.0]]
        self.array = np.ones(2)
        self.inner = nn.Identity()
        sign = 1.0

        def closure(x):
            return x * sign

        def turn(value):
            nonlocal sign
            sign = value

        self.closure, self.turn = closure, turn
        self.bound = functools.partial(torch.mul, 1.0)

    def forward(self, x):
        y = self.inner(self.l(x))
        y = -y if self.stage >= 2 else y
        y = y * self.factor * self.names["sign"]["of"] * self.signs[1][0] * float(self.array[0])
        return self.closure(self.bound(y)) * self.kind * SLOPE


class Negative(nn.Module):
    def forward(self, x):
        return -x


def negate(module, args, output):
    return -output


def change_globally(model, loss):
    global SLOPE
    SLOPE = -1.0


CHANGES = {
    "integer": lambda model, loss: setattr(model, "stage", 2),
    "float": lambda model, loss: setattr(model, "factor", -1.0),
    "dict": lambda model, loss: model.names["sign"].update(of=-1),
    "list": lambda model, loss: model.signs[1].__setitem__(0, -1.0),
    "array": lambda model, loss: model.array.__setitem__(0, -1.0),
    "closure": lambda model, loss: model.turn(-1.0),
    "module": lambda model, loss: setattr(model, "inner", Negative()),
    "hook": lambda model, loss: model.l.register_forward_hook(negate),
    "global hook": lambda model, loss: nn.modules.module.register_module_forward_hook(
        lambda module, args, output: -output if isinstance(module, nn.Linear) else None
    ),
    "method": lambda model, loss: setattr(model, "bound", functools.partial(torch.mul, -1.0)),
    "class": lambda model, loss: setattr(Staged, "kind", -1),
    "global": change_globally,
    "float of the loss": lambda model, loss: setattr(loss, "weight", -1.0),
    "entry of the loss": lambda model, loss: loss.table["sign"].__setitem__(0, -1.0),
}


@pytest.fixture(autouse=True)
def as_before():
    global SLOPE
    yield
    Staged.kind, SLOPE = 1, 1.0
    nn.modules.module._global_forward_hooks.clear()


def plan_of(steps=64):
    aggregation = Sum(clip=1.0, noise_multiplier=1e-9)
    return Plan(sampling_rate=0.5, steps=steps, aggregation=aggregation, expected_batch=1.0)


class Repeated(dict):
    """Stands in for graphs on the CPU: repeats its first result for every form of arguments."""

    def __init__(self, function):
        self._function = function

    def __call__(self, *arguments):
        key = kind_of(arguments)
        if key not in self:
            self[key] = self._function(*arguments)
        return self[key]


def step_of(model, loss, way, key=0):
    """A step that runs in one of the ways."""
    made = Step(plan_of(), model, loss, key=Key.from_seed(key), cuda_graph=way == "graph")
    if way == "repeated":
        made._run = Repeated(made._release)
        made.programs.append(made._run)
    return made


def sum_of(step, inputs, targets):
    """The sum that a step releases for chunks of at most four records."""
    parts = zip(inputs.split(4), targets.split(4), strict=True)
    step([Chunk(*part) for part in parts])
    return torch.cat([p.grad.flatten() for p in step.model.parameters()]).double().cpu()


def network(way):
    torch.manual_seed(0)
    return Staged().to("cuda" if way == "graph" else "cpu")


def records(way, count):
    generator = torch.Generator().manual_seed(1)
    device = "cuda" if way == "graph" else "cpu"
    return (
        torch.randn(count, 3, generator=generator).to(device),
        10 + torch.rand(count, generator=generator).to(device),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_program_outlives_what_it_was_made_for(change, way):
    """One record more, hence one chunk more, moves the sum by no more than the clip.

    The programs for two chunks are made before a public change, and none for one chunk is used
    after it unless it was made anew.
    """
    model, loss = network(way), Weighted()
    step = step_of(model, loss, way)
    inputs, targets = records(way, 5)
    for _ in range(5):
        sum_of(step, inputs, targets)
        sum_of(step, inputs[:4], targets[:4])
    before = sum_of(step, inputs[:4], targets[:4])
    CHANGES[change](model, loss)
    for _ in range(2):
        with_record = sum_of(step, inputs, targets)
        without = sum_of(step, inputs[:4], targets[:4])
        assert float((with_record - without).norm()) <= 1 + 1e-4
        torch.testing.assert_close(without, -before, rtol=1e-3, atol=1e-3)  # it was followed


def setting(place, name, value):
    def change(model, stack):
        stack.callback(setattr, place, name, getattr(place, name))
        setattr(place, name, value)

    return change


def setting_by(function, value):
    def change(model, stack):
        stack.callback(function, not value)
        function(value)

    return change


DEVICE = torch.backends.cuda
OUTSIDE = {
    "cuDNN attention": setting_by(DEVICE.enable_cudnn_sdp, False),
    "sums of attention": setting_by(DEVICE.allow_fp16_bf16_reduction_math_sdp, True),
    "sums in half": setting(DEVICE.matmul, "allow_fp16_reduced_precision_reduction", False),
    "sums in bfloat16": setting(DEVICE.matmul, "allow_bf16_reduced_precision_reduction", False),
    "TF32": setting(DEVICE.matmul, "allow_tf32", True),
    "TF32 of convolutions": setting(torch.backends.cudnn, "allow_tf32", False),
    "function mode": lambda model, stack: stack.enter_context(BaseTorchFunctionMode()),
    "dispatch mode": lambda model, stack: stack.enter_context(TorchDispatchMode()),
    "frozen": lambda model, _: model.l.weight.requires_grad_(False),
    "moved": lambda model, _: setattr(model.l.weight, "data", model.l.weight.data.clone()),
    "replaced": lambda model, _: setattr(model.l, "weight", nn.Parameter(torch.ones(1, 3))),
    "buffer": lambda model, _: model.l.register_buffer("offset", torch.ones(1)),
    "renamed": lambda model, _: model.l._parameters.update(w=model.l._parameters.pop("weight")),
}


@pytest.mark.parametrize("change", OUTSIDE)
def test_no_program_outlives_settings_and_parameters(change):
    step = step_of(network("eager"), Weighted(), "repeated")
    for _ in range(2):
        step.refresh()
        step._run["made"] = 1
    step.refresh()
    assert step._run
    with ExitStack() as stack:
        OUTSIDE[change](step.model, stack)
        step.refresh()
    assert not step._run


def test_a_key_tells_numbers_of_different_types_apart():
    keys = [kind_of({"x": each}) for each in (True, 1, 1.0, 0, 0.0, -0.0, None, "1")]
    assert len(set(keys)) == len(keys)
    assert kind_of({"x": torch.nan}) == kind_of({"x": float("nan")})


def test_a_result_is_only_written_over_one_of_its_structure():
    """Graphs share what they return; the same shapes by other names are another result."""
    captured = Captured.__new__(Captured)
    captured._result = {"a": torch.zeros(2), "b": 1}
    for other in (
        {"b": torch.ones(2), "a": 1},
        [torch.ones(2), 1],
        {"a": torch.ones(2), "b": True},
        {"a": torch.ones(2).double(), "b": 1},
    ):
        assert captured._written(other) is other
    assert captured._written({"a": torch.ones(2), "b": 1}) is captured._result
    assert captured._result["a"].sum() == 2


class OwnRandom(random.Random):
    pass


def in_this_thread():
    made = threading.local()
    made.number = 1
    return made


IN_C = {
    "array": (
        lambda: array.array("d", [1.0]),
        lambda own: own.append(2.0),
        lambda own: own.tolist(),
    ),
    "bytes": (lambda: bytearray(b"12"), lambda own: own.pop(), bytes),
    "bits": (lambda: np.random.PCG64(0), lambda own: own.random_raw(), lambda own: own.state),
    "subclass": (
        lambda: OwnRandom(0),
        lambda own: own.gauss(0, 1),
        lambda own: own.getstate(),
    ),
    "thread": (
        in_this_thread,
        lambda own: setattr(own, "number", 2),
        lambda own: own.number,
    ),
    "context": (
        lambda: ContextVar("number", default=1),
        lambda own: own.set(2),
        lambda own: own.get(),
    ),
}


@pytest.mark.parametrize("kind", IN_C)
def test_state_of_objects_of_c_is_seen_and_put_back(kind):
    make, change, read = IN_C[kind]
    model = nn.Identity()
    model.own, before = (own := make()), read(own)
    host = HostState(model=model)
    assert host.holds()
    change(own)
    assert not host.holds()
    assert host.changes()[0] == ("model.own.number" if kind == "thread" else "model.own")
    host.restore()
    assert host.holds()
    assert read(own) == before


def test_a_generator_of_the_system_has_no_state():
    model = nn.Identity()
    model.own = random.SystemRandom()
    host = HostState(model=model)
    model.own.random()
    assert host.holds()


class Cooling(nn.Linear):
    tau = 1.0

    def forward(self, x):
        self.tau *= 0.9
        return super().forward(x) * self.tau


class Drawing(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.rng = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x) * float(self.rng.normal())


class PythonDrawing(Drawing):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.rng = random.Random(3)

    def forward(self, x):
        return nn.Linear.forward(self, x) * self.rng.gauss(0, 1)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (-1) ** self.calls


class Listing(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return super().forward(x) * len(self.seen)


COUNT = {"calls": 0}


class CountingGlobally(nn.Linear):
    def forward(self, x):
        COUNT["calls"] += 1
        return super().forward(x) * COUNT["calls"]


class Iterating(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.schedule = iter([0.1] * 1000)

    def forward(self, x):
        return super().forward(x) * next(self.schedule)


STATEFUL = {
    Cooling: "model.tau",
    Drawing: "model.rng",
    PythonDrawing: "model.rng",
    Counting: "model.calls",
    Listing: "model.seen",
    CountingGlobally: "COUNT['calls']",
    Iterating: "model.schedule",
}


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("entry", ["step", "fit", "make_private", "check"])
def test_state_that_forward_changes_is_refused_by_name(kind, entry):
    torch.manual_seed(0)
    model, (inputs, targets) = kind(3, 1), records("eager", 6)
    name = STATEFUL[kind]
    if entry == "check":
        found = prudent.check(model, lambda o, t: squared(o, t).mean(), (inputs, targets))
        assert not found.ok
        assert any(name in finding.problem for finding in found.findings)
        assert not any("norms" in finding.problem for finding in found.findings)
        return
    if entry == "step":
        act = functools.partial(step_of(model, squared, "eager"), [Chunk(inputs, targets)])
    elif entry == "fit":
        act = functools.partial(fit, plan_of(2), model, squared, (inputs, targets), lr=0.1)
    else:
        data = torch.utils.data.TensorDataset(inputs, targets)
        loader = torch.utils.data.DataLoader(data, batch_size=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, *_ = prudent.make_private(model, optimizer, loader, plan=plan_of(4))
        act = functools.partial(model, inputs)
    with pytest.raises(KeptRecordError) as refused:
        act()
    assert name in str(refused.value)


def test_a_loss_with_state_is_refused_by_name():
    class Annealed:
        weight = 1.0

        def __call__(self, outputs, targets):
            self.weight *= 0.9
            return self.weight * squared(outputs, targets)

    with pytest.raises(KeptRecordError, match=r"loss\.weight"):
        step_of(nn.Linear(3, 1), Annealed(), "eager")([Chunk(*records("eager", 2))])


class Solving(nn.Linear):
    """Rejects a singular record, and counts its calls; the count turns late."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        y = torch.linalg.solve(x.reshape(-1, 2, 2), torch.ones(len(x), 2, 1))
        return super().forward(y[..., 0]) * (-1 if self.calls > 8 else 1)


@pytest.mark.parametrize("engine", [BookKeeping, Materialised])
def test_no_number_of_passes_reaches_a_sum(engine):
    """A counter that turns only after the rehearsal, beside a record that needs many passes."""
    inputs = torch.eye(2).flatten() + 0.1 * torch.randn(
        8, 4, generator=torch.Generator().manual_seed(0)
    )
    targets = torch.full((8,), 10.0)
    singular = torch.cat([inputs, torch.zeros(1, 4)]), torch.full((9,), 10.0)
    sums = []
    for batch in ((inputs, targets), singular):
        torch.manual_seed(0)
        model = Solving(2, 1, bias=False)
        step = Step(plan_of(), model, squared, engine=engine(model, squared), key=Key.from_seed(0))
        found = []
        for _ in range(3):
            step([Chunk(*batch)])
            found.append(model.weight.grad.clone())
        sums.append(torch.stack(found))
        assert model.calls <= 8
    assert float((sums[0] - sums[1]).flatten(1).norm(dim=1).max()) <= 1 + 1e-4
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-4, atol=1e-4)


def test_a_counter_that_nothing_depends_on_may_stay():
    class Counted(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counted(3, 1)
    step = step_of(model, squared, "eager")
    for _ in range(3):
        step([Chunk(*records("eager", 4))])
    assert model.calls == 1  # of the rehearsal; later passes leave nothing behind


def test_a_tensor_that_forward_changes_in_place_is_refused():
    class Accumulating(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.total = torch.zeros(1)  # neither a parameter nor a buffer

        def forward(self, x):
            self.total += 1
            return super().forward(x) * self.total

    with pytest.raises(KeptRecordError, match=r"model\.total"):
        step_of(Accumulating(3, 1), squared, "eager")([Chunk(*records("eager", 4))])


def test_what_changed_is_named_and_put_back():
    model, loss = Staged(), Weighted()
    state = HostState(model=model, loss=loss)
    assert state.holds()
    assert state.changes() == []
    for change in ("integer", "dict", "list", "array", "closure", "hook", "entry of the loss"):
        CHANGES[change](model, loss)
    assert not state.holds()
    assert {
        "model.stage",
        "model.names['sign']['of']",
        "model.signs[1][0]",
        "model.array",
        "sign",
        "loss.table['sign'][0]",
    } <= set(state.changes())
    state.restore()
    assert state.holds()
    assert (model.stage, model.names, model.signs) == (0, {"sign": {"of": 1}}, [1, [1.0]])
    assert model.array[0] == 1
    assert model.closure(2.0) == 2.0
    assert not model.l._forward_hooks
    assert loss.table == {"sign": [1.0]}


def test_equal_values_are_no_change():
    model = Staged()
    model.factor = 1234.5
    state = HostState(model=model)
    model.factor = float("1234.5")
    model.size = 3
    assert state.changes() == ["model.size"]
    del model.size
    assert state.holds()
    model.factor = 1234
    model.stage = True
    assert state.changes() == ["model.stage", "model.factor"]


def test_fit_follows_a_public_schedule():
    """An attribute that a callback sets between steps acts from then on."""
    from prudent.training import Reporting

    model = network("eager")
    seen = []

    def advance(trained, metrics):
        trained.stage = metrics.step
        seen.append(metrics.step)

    reporting = Reporting(evaluate_every=1, callbacks=[advance])
    fit(
        plan_of(4),
        model,
        squared,
        records("eager", 8),
        reporting=reporting,
        execution=Execution(seed=1),
        lr=0.01,
    )
    assert seen == [1, 2, 3, 4]
    assert model.stage == 4
