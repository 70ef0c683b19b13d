"""On a GPU: a captured step is the eager one, and nothing waits for the device."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn

from prudent.accounting import DiscreteLaplaceTest, GaussianTest, LaplaceTest
from prudent.training import (
    AdaptiveTrim,
    Chunk,
    Execution,
    HeldOut,
    LossRelease,
    Plan,
    PoissonSampler,
    ProposeTestRelease,
    Reporting,
    Step,
    Sum,
    TrimmedSum,
    fit,
)
from prudent.training import noise as noise_module
from prudent.training.keystream import Key, Purpose
from prudent.training.noise import DeviceNoise, HostNoise, StepState
from prudent.training.parallel import DistributedGroup
from prudent.training.run.run import Run
from tests.servers import free_port
from tests.training import worlds
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered
from tests.training.test_keystream import VECTORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECORDS, RATE = 400, 0.1


def keystream_kernel():
    from prudent.training import keystream_kernel  # needs Triton, which needs a GPU

    return keystream_kernel


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ).double()


def records():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(RECORDS, 1, 8, 8, generator=generator).double(), torch.arange(RECORDS) % 3


def rule(test):
    return ProposeTestRelease(
        clip=1.0,
        propose=0.7,
        noise_multiplier=1.0,
        test=test,
        failure=1e-3,
        trim=AdaptiveTrim(first=0.4, up=0.1, down=0.1, most=1.0),
    )


RULES = {
    "sum": Sum(clip=1.0, noise_multiplier=1.0),
    "trimmed": TrimmedSum(clip=1.0, noise_multiplier=1.0),
    "gaussian": rule(GaussianTest(1.0)),
    "laplace": rule(LaplaceTest(1.0)),
    "discrete": rule(DiscreteLaplaceTest(1.0)),
}


def train(model, aggregation, *, graph, optimizer=torch.optim.SGD, policies=None, **options):
    plan = Plan(sampling_rate=RATE, steps=30, aggregation=aggregation, **(policies or {}))
    execution = Execution(device="cuda", seed=3, cuda_graph=graph)
    return fit(
        plan,
        model,
        cross_entropy,
        records(),
        optimizer=optimizer,
        execution=execution,
        **({"lr": 0.01} | options),
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "options",
    # A graph needs the form of Adam that counts its steps on the device, in single precision.
    [{"momentum": 0.9}, {"optimizer": torch.optim.Adam, "capturable": True}],
    ids=["momentum", "adam"],
)
def test_the_graph_is_the_eager_step(name, options):
    captured, eager = (
        train(network(), RULES[name], graph=graph, **options) for graph in (True, False)
    )
    torch.testing.assert_close(weights(captured.model), weights(eager.model), rtol=1e-8, atol=1e-8)
    assert captured.pass_rate == eager.pass_rate
    assert captured.history == eager.history


def test_the_graph_follows_the_average():
    captured, eager = (
        train(network(), RULES["gaussian"], graph=graph, average=0.9) for graph in (True, False)
    )
    torch.testing.assert_close(weights(captured.model), weights(eager.model), rtol=1e-8, atol=1e-8)
    assert captured.history == eager.history


@pytest.mark.parametrize("change", ["rate", "frozen", "momentum", "hook"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_graph_follows_what_a_callback_changes(kind, change):
    own = []

    def kept(parameters, **options):
        own.append(kind(parameters, **options))
        return own[-1]

    def changing(model, metrics):
        if metrics.step != 15:
            return
        if change == "rate":
            own[-1].param_groups[0]["lr"] *= 3
        elif change == "frozen":
            model[0].requires_grad_(False)
        elif change == "momentum":
            own[-1].state.clear()
        else:
            own[-1].register_step_post_hook(lambda optimizer, *_: model[0].bias.data.zero_())

    more = {"momentum": 0.9} if kind is torch.optim.SGD else {"capturable": True}
    reporting = Reporting(callbacks=[changing], evaluate_every=15)
    captured, eager = (
        train(network(), RULES["sum"], graph=graph, optimizer=kept, reporting=reporting, **more)
        for graph in (True, False)
    )
    torch.testing.assert_close(weights(captured.model), weights(eager.model), rtol=1e-8, atol=1e-8)


def on_host(aggregation, *, policies=None, **options):
    """The run of `train` without a GPU."""
    plan = Plan(sampling_rate=RATE, steps=30, aggregation=aggregation, **(policies or {}))
    settings = {"execution": Execution(seed=3), "lr": 0.01} | options
    return fit(plan, network(), cross_entropy, records(), **settings)


def assert_same_run(one, other):
    torch.testing.assert_close(
        weights(one.model).cpu(), weights(other.model).cpu(), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("name", ["sum", "gaussian"])
def test_people_on_a_device_are_those_of_the_host(name):
    """A person's records are chosen, weighted and clipped alike: eager, captured, on the host."""
    options = {"unit": torch.arange(RECORDS) % 60, "records_per_person": 4}
    captured, eager = (
        train(network(), RULES[name], graph=graph, **options) for graph in (True, False)
    )
    assert_same_run(captured, eager)
    assert_same_run(captured, on_host(RULES[name], **options))
    assert not torch.allclose(
        weights(captured.model), weights(train(network(), RULES[name], graph=True).model)
    )


RELEASES = {
    "loss": ("gaussian", {"watch": LossRelease(loss_every=5, bound=2.0, noise_multiplier=3.0)}),
    "accuracy": ("gaussian", {"held_out": HeldOut(every=5, noise_multiplier=3.0)}),
    "correlated": ("sum", {"num_bands": 4}),
    "all": (
        "sum",
        {
            "num_bands": 3,
            "held_out": HeldOut(every=5, metric="loss", bound=2.0, noise_multiplier=3.0),
            "watch": LossRelease(loss_every=5, bound=2.0, noise_multiplier=3.0),
        },
    ),
}


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("name", RELEASES)
def test_what_a_plan_releases_on_a_device_is_that_of_the_host(name, people):
    rule, policies = RELEASES[name]
    options = {"policies": policies}
    if "held_out" in policies:
        options["held_out_set"] = tuple(part[:90] for part in records())
    if people:
        options |= {"unit": torch.arange(RECORDS) % 60, "records_per_person": 4}
        if "held_out" in policies:
            options["held_out_unit"] = 60 + torch.arange(90) % 20
    captured, eager = (
        train(network(), RULES[rule], graph=graph, **options) for graph in (True, False)
    )
    host = on_host(RULES[rule], **options)
    for other in (eager, host):
        assert_same_run(captured, other)
        shown, expected = ([m.evaluation for m in run.history] for run in (captured, other))
        assert any(shown) == (name != "correlated")
        for one, same in zip(shown, expected, strict=True):
            assert one == pytest.approx(same, rel=1e-9)
    if name == "correlated":
        alone = train(network(), RULES[rule], graph=True)
        assert not torch.allclose(weights(captured.model), weights(alone.model))


def test_garbage_of_a_run_does_not_end_the_capture_of_the_next():
    before = gc.get_threshold()
    gc.set_threshold(1)  # collects at nearly every turn
    try:
        for _ in range(3):
            train(network(), RULES["gaussian"], graph=True)
    finally:
        gc.set_threshold(*before)


def test_dropout_in_a_graph_is_that_of_the_eager_step():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    results = []
    for graph in (True, False):
        torch.cuda.manual_seed(4 + graph)  # which must not matter, and is left as it is
        before = torch.cuda.get_rng_state()
        fitted = train(copy.deepcopy(model).double(), RULES["sum"], graph=graph)
        assert torch.equal(torch.cuda.get_rng_state(), before)
        results.append(weights(fitted.model))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", RULES)
def test_nothing_waits_for_the_device(name):
    model, (inputs, targets) = network().cuda(), (part.cuda() for part in records())
    plan = Plan(sampling_rate=RATE, steps=9, aggregation=RULES[name])
    step = Step(plan, model, cross_entropy, expected_batch=RATE * RECORDS)
    sampler = PoissonSampler(RECORDS, RATE, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(number):
        batch = sampler.batch(number)
        step([Chunk(inputs[i], targets[i], v) for i, v in zip(batch.ids, batch.valid, strict=True)])
        optimizer.step()

    update(0)  # draws a block of batches and builds tables, which may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, 9):
            update(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class TestKeystream:
    """The kernels read the bits of the host, whose cipher the known answers are checked on."""

    def test_known_answer(self):
        """RFC 8439, section 2.3.2; its nonce is a step here, and its block the second."""
        key = torch.from_numpy(np.arange(32, dtype=np.uint8).view("<i4").copy()).cuda()
        step = torch.tensor(0x4A00000009000000, device="cuda")
        words = torch.zeros(16, dtype=torch.int64, device="cuda")
        keystream_kernel().fill_words(words, key, step)
        assert words[8:].cpu().numpy().tobytes().hex() == VECTORS[0][3]

    @pytest.mark.parametrize("count", [1, 2, 8, 9, 1023, 1024, 1025, 300_001])
    @pytest.mark.parametrize("step", [0, 1, 2**32 + 5, 2**62])
    def test_words_are_those_of_the_host(self, count, step):
        stream = Key.from_seed(2).stream(Purpose.TEST)
        key = torch.from_numpy(np.frombuffer(stream.secret, "<i4").copy()).cuda()
        words = torch.zeros(count, dtype=torch.int64, device="cuda")
        keystream_kernel().fill_words(words, key, torch.tensor(step, device="cuda"))
        assert torch.equal(words.cpu(), stream.words(count, step=step))

    @pytest.mark.parametrize("count", [1, 7, 1024, 26_010, 3_000_001])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_noise_is_that_of_the_host(self, count, dtype):
        """The same bits: the lattice hides the last digits of logarithm and cosine."""
        state = StepState.start(0.0, torch.device("cuda"))
        state.move_to(11)
        start, deviation = torch.linspace(-1, 1, count, dtype=dtype), torch.tensor(0.7, dtype=dtype)
        totals = []
        for noise, place in ((DeviceNoise, "cuda"), (HostNoise, "cpu")):
            total = start.clone().to(place)
            source = noise(Key.from_seed(3), torch.device(place))
            source.add_(total, deviation.to(place), state)
            totals.append(total.cpu())
        assert torch.equal(*totals)

    @pytest.mark.parametrize("step", [11, 2**40 + 53])
    def test_numbers_are_those_of_the_host_up_to_the_last_digits(self, step):
        """Below the lattice, and where a pair gets further bits, as in the second step."""
        state = StepState.start(0.0, torch.device("cuda"))
        state.move_to(step)
        totals = []
        for noise, place in ((DeviceNoise, "cuda"), (HostNoise, "cpu")):
            total = torch.zeros(26_011, dtype=torch.float64, device=place)
            one, fine = torch.tensor([1.0, 2.0**-45], dtype=torch.float64, device=place)
            source = noise(Key(bytes(32)), torch.device(place))
            source.add_(total, one, state, fine)
            totals.append(total.cpu())
        torch.testing.assert_close(*totals, rtol=0, atol=1e-13)

    def test_without_noise_the_sum_is_left_as_it_is(self):
        state = StepState.start(0.0, torch.device("cuda"))
        total = torch.linspace(-1, 1, 3001, device="cuda")
        source = DeviceNoise(Key.random(), total.device)
        source.add_(total, torch.zeros((), device="cuda"), state)
        assert torch.equal(total.cpu(), torch.linspace(-1, 1, 3001))

    def test_it_follows_the_device_of_the_sum_and_its_stream(self):
        stream = torch.cuda.Stream()
        state = StepState.start(0.0, torch.device("cuda"))
        source = DeviceNoise(Key.from_seed(3), torch.device("cuda"))
        with torch.cuda.stream(stream):
            total = torch.zeros(1000, device="cuda")
            source.add_(total, torch.ones((), device="cuda"), state)
            later = total.clone()
        torch.cuda.synchronize()
        assert float(later.std()) == pytest.approx(1, abs=0.2)

    def test_a_replay_reads_the_next_position(self):
        """Key and step are read from device memory: a graph that had baked them in would repeat."""
        state = StepState.start(0.0, torch.device("cuda"))
        source = DeviceNoise(Key.from_seed(4), torch.device("cuda"))
        total, one = torch.zeros(500, device="cuda"), torch.ones((), device="cuda")
        source.add_(total, one, state)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            state.number += 1
            total.zero_()
            source.add_(total, one, state)
        for step in (1, 2, 3):
            graph.replay()
            expected = torch.zeros(500)
            state.taken = step
            HostNoise(Key.from_seed(4), torch.device("cpu")).add_(expected, torch.ones(()), state)
            assert torch.equal(total.cpu(), expected)

    def test_a_run_is_that_of_the_host(self):
        """The same key on either device: the same batches, branches and noise."""
        on_device, host = (
            train(network(), RULES["gaussian"], graph=True),
            on_host(RULES["gaussian"]),
        )
        assert on_device.pass_rate == host.pass_rate
        assert_same_run(on_device, host)

    def test_without_kernels_the_host_draws_the_same_noise(self, monkeypatch):
        def missing():
            raise ModuleNotFoundError("No module named 'triton'")

        expected = train(network(), RULES["gaussian"], graph=True)
        noise_module._kernels_work.cache_clear()
        monkeypatch.setattr(noise_module, "_kernels", missing)
        try:
            with pytest.warns(RuntimeWarning, match="no CUDA graph is captured"):
                drawn = train(network(), RULES["gaussian"], graph=True)
        finally:
            noise_module._kernels_work.cache_clear()
        torch.testing.assert_close(
            weights(drawn.model), weights(expected.model), rtol=1e-8, atol=1e-8
        )


def test_batches_on_the_device_are_poisson():
    sampler = PoissonSampler(40, 0.2, physical_batch=3, key=Key.from_seed(8), device="cuda")
    counts, steps = torch.zeros(40, device="cuda"), 2000
    on_host = PoissonSampler(40, 0.2, physical_batch=3, key=Key.from_seed(8))
    for number in range(steps):
        batch = sampler.batch(number)
        assert torch.equal(batch.ids.cpu(), on_host.batch(number).ids)
        counts[batch.ids[batch.valid]] += 1
    deviation = (counts / steps - 0.2) / (0.2 * 0.8 / steps) ** 0.5
    assert deviation.abs().max() < 4.5


def test_a_resumed_run_is_the_whole_one(tmp_path):
    class Killed(BaseException):
        pass

    def dying(model):
        raise Killed

    def run(**options):
        return train(network(), RULES["gaussian"], graph=True, **gathered(options))

    whole = run(out=tmp_path / "whole")
    with pytest.raises(Killed):
        run(out=tmp_path / "cut", evaluate=dying)
    cut = run(out=tmp_path / "cut", resume=True)
    torch.testing.assert_close(weights(cut.model), weights(whole.model), rtol=1e-8, atol=1e-8)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two processes that share the device; gloo carries what they say, since nccl wants two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRUDENT_TEST_DEVICE", "cuda:0")
        yield worlds.Group(tmp_path_factory.mktemp("pair"), 2).left("all")


@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "trimmed",
        "mixed",
        "ties",
        "sparse",
        "chunks",
        "adam",
        "corrupted",
        "items",
        "averaged",
    ],
)
def test_two_processes_are_one(pair, tmp_path, name):
    expected = worlds.SCENARIOS[name](tmp_path)
    # One process captures its step, and a captured Adam counts steps in single precision.
    tolerance = 1e-4 if name == "adam" else 1e-9
    for outcomes in pair:
        assert not isinstance(outcomes[name], str), outcomes[name]
        torch.testing.assert_close(
            outcomes[name]["parameters"], expected["parameters"], rtol=0, atol=tolerance
        )
        assert outcomes[name]["trims"] == expected["trims"]


def test_what_a_data_set_draws_on_the_host_is_drawn_again():
    """A data set may draw from the generator of the host, which is put back."""
    plan = Plan(sampling_rate=RATE, steps=3, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    run = Run(
        plan,
        network(),
        cross_entropy,
        records(),
        options={"lr": 0.1},
        execution=Execution(device="cuda"),
    )
    state = run.state()
    drawn = torch.rand(5)
    run.restore(state)
    assert torch.equal(torch.rand(5), drawn)


@pytest.mark.parametrize("graph", [True, False])
def test_a_label_out_of_range_does_not_end_the_process(graph):
    inputs, targets = records()
    targets[17] = 918273
    plan = Plan(sampling_rate=RATE, steps=12, aggregation=RULES["gaussian"])
    execution = Execution(device="cuda", seed=3, cuda_graph=graph)
    fitted = fit(plan, network(), cross_entropy, (inputs, targets), execution=execution, lr=0.1)
    assert weights(fitted.model).isfinite().all()


def test_captured_runs_one_after_another_keep_no_memory():
    """Workspaces of a stream stay allocated, so each run must not have a stream of its own."""
    held = []
    for _ in range(4):
        train(network(), RULES["gaussian"], graph=True)
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert held[3] - held[1] < 2**20


def test_a_record_counts_once_in_a_graph():
    model, (inputs, targets) = network().cuda(), (part.cuda() for part in records())
    plan = Plan(sampling_rate=RATE, steps=99, aggregation=Sum(clip=1.0, noise_multiplier=1e-12))
    step = Step(plan, model, cross_entropy, expected_batch=RATE * RECORDS)
    ids = torch.arange(8, device="cuda")

    def run():
        return step([Chunk(inputs[ids], targets[ids], ids=ids)])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # or it could read ids before they are written
    with torch.cuda.stream(stream):
        run()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(step.generator)
    with torch.cuda.graph(graph, stream=stream):
        outcome = run()
    ids.copy_(torch.tensor([3, 3, 3, 5, 5, 4, 7, 7]))
    graph.replay()
    assert outcome.drawn == 4


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)


@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": cosine, "momentum": 0.9},
        {"scheduler": cosine, "optimizer": torch.optim.Adam},
        {"optimizer": torch.optim.RMSprop},  # not one that is known to be capturable
    ],
    ids=["schedule", "schedule of adam", "rmsprop"],
)
@pytest.mark.parametrize("physical", [None, 40])
def test_an_optimizer_outside_the_graph_follows_every_step(options, physical):
    """Also where batches of two chunks, which are not captured, come between."""
    results = []
    for graph in (True, False):
        plan = Plan(sampling_rate=RATE, steps=30, aggregation=RULES["gaussian"])
        execution = Execution(device="cuda", seed=3, cuda_graph=graph, physical_batch=physical)
        settings = {"lr": 0.01, "execution": execution}
        fitted = fit(plan, network(), cross_entropy, records(), **(settings | options))
        results.append((weights(fitted.model), fitted.history))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-8, atol=1e-8)
    assert results[0][1] == results[1][1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_items_are_read_ahead_and_pinned(workers, recompute):
    inputs, targets = records()
    items = [
        {"input": one, "labels": int(label)} for one, label in zip(inputs, targets, strict=True)
    ]
    example = {"input": torch.zeros_like(inputs[0]), "labels": 0}
    plan = Plan(sampling_rate=RATE, steps=30, aggregation=RULES["gaussian"])
    results = []
    for data, form in ((items, example), ((inputs, targets), None)):
        execution = Execution(device="cuda", seed=3, workers=workers, recompute=recompute)
        settings = {"example": form, "execution": execution, "lr": 0.01}
        fitted = fit(plan, network(), cross_entropy, data, **settings)
        results.append((weights(fitted.model), fitted.pass_rate))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-8, atol=1e-8)
    assert results[0][1] == results[1][1]


def released(step, batches):
    """The gradients of a few steps, with an update after each."""
    found = []
    for inputs, targets in batches:
        step([Chunk(inputs, targets)])
        found.append(torch.cat([p.grad.flatten() for p in step.model.parameters()]))
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter -= 0.1 * parameter.grad
    return found


def batches_of(count):
    inputs, targets = records()
    return [(inputs[i::7][:40].cuda(), targets[i::7][:40].cuda()) for i in range(count)]


def test_a_step_replays_itself():
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    runs = []
    for graph in (None, False):
        model = network().cuda()
        made = Step(
            plan, model, cross_entropy, expected_batch=40, key=Key(bytes(32)), cuda_graph=graph
        )
        runs.append(released(made, batches_of(6)))
        assert (made._run is None) == (graph is False)
        assert graph is False or len(made._run._graphs) == 1
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected)


class Scaled(nn.Module):
    """As DeBERTa does it: numbers are made on the host and copied, which no graph can."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        scale = torch.sqrt(torch.tensor(inputs.shape[-1], dtype=torch.float64) * 3)
        return self.inner(inputs) / scale.to(inputs.device) + torch.tensor(2).to(inputs.device)


def doubled(x):
    return x * torch.tensor(x.dim()).type_as(x)


class Scripted(Scaled):
    """The same inside TorchScript, which shows its operations to no mode for functions."""

    def __init__(self):
        super().__init__()
        self.doubled = torch.jit.script(doubled)

    def forward(self, inputs):
        return self.doubled(super().forward(inputs))


@pytest.mark.filterwarnings("error:The step cannot be captured")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [Scaled, Scripted])
def test_numbers_from_the_host_are_captured(kind):
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    runs = []
    for graph in (None, False):
        options = {"expected_batch": 40, "key": Key(bytes(32)), "cuda_graph": graph}
        made = Step(plan, kind().cuda(), cross_entropy, **options)
        runs.append(released(made, batches_of(10)))
        assert graph is False or len(made._run._graphs) == 1
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected)


def shaken(x):
    return x * torch.rand(()).to(x.device)


class Shaken(nn.Module):
    """Draws on the host inside TorchScript, where no mode for functions sees it."""

    def __init__(self):
        super().__init__()
        self.inner, self.shaken = network(), torch.jit.script(shaken)

    def forward(self, inputs):
        return self.shaken(self.inner(inputs))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_number_that_is_drawn_unseen_is_not_captured():
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    options = {"expected_batch": 40, "key": Key(bytes(32))}
    made = Step(plan, Shaken().cuda(), cross_entropy, **options)
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        released(made, batches_of(5))
    assert not made._run._graphs


class Skipping(nn.Module):
    """Skips a layer in some steps, as models do that draw a number for all records."""

    def __init__(self, share):
        super().__init__()
        self.inner, self.share = network(), share

    def forward(self, x):
        skips = torch.rand([]) < self.share
        return self.inner(x) * (2 if skips else 1)


@pytest.mark.filterwarnings("error:The step cannot be captured")
@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (0.5, 2)])
def test_a_replay_follows_what_a_model_chooses_for_all_records(share, count):
    plan = Plan(sampling_rate=RATE, steps=40, aggregation=rule(GaussianTest(4.0)))
    runs = []
    for graph in (None, False):
        torch.manual_seed(0)
        options = {"expected_batch": 40, "key": Key(bytes(32)), "cuda_graph": graph}
        made = Step(plan, Skipping(share).cuda(), cross_entropy, **options)
        runs.append(released(made, batches_of(30)))
        if graph is None:  # one for each branch that the model takes
            (graphs,) = made._run._graphs.values()
            assert len({each.branches.now() for each in graphs}) == 1
            assert len(graphs) == count
            assert len({id(each.result) for each in graphs}) == 1  # as large as the model
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.fixture
def nccl(monkeypatch):
    """A process group of this process alone, over nccl."""
    for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", str(free_port()))):
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    yield DistributedGroup()
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("graph", [None, False])
def test_exchanges_over_nccl_wait_for_no_device(nccl, graph):
    """A replayed or repeated step of a process group is that of a process by itself."""
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    chunks = [
        Chunk(*batch, ids=7 * torch.arange(len(batch[0]), device="cuda")) for batch in batches_of(9)
    ]
    runs = []
    for processes in (nccl, None):
        made = Step(
            plan, network().cuda(), cross_entropy, expected_batch=40, key=Key(bytes(32)),
            cuda_graph=graph, processes=processes,
        )  # fmt: skip
        found = []
        for number, chunk in enumerate(chunks):
            torch.cuda.set_sync_debug_mode("error" if number > 4 else "default")
            try:
                made([chunk])
                found += [parameter.grad.clone() for parameter in made.model.parameters()]
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert (made._run is None) == (graph is False)
        runs.append(found)
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_record_twice_counts_once_and_the_next_step_says_so():
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=RULES["sum"])
    step = Step(plan, network().cuda(), cross_entropy, expected_batch=40)
    (inputs, targets), *_ = batches_of(1)
    ids = torch.arange(len(inputs), device="cuda")
    outcome = step([Chunk(inputs, targets, ids=ids.clamp_min(1))])
    assert int(outcome.drawn) == len(inputs) - 1
    with pytest.raises(ValueError, match="repeated ids"):
        step([Chunk(inputs, targets, ids=ids)])
    step([Chunk(inputs, targets, ids=ids)])


def test_outcomes_of_replays_are_kept_apart():
    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    step = Step(plan, network().cuda(), cross_entropy, expected_batch=40)
    outcomes = [step([Chunk(*batch)]) for batch in batches_of(6)]
    assert len({float(outcome.noisy_margin) for outcome in outcomes}) == 6


def test_a_step_that_cannot_be_captured_goes_on():
    """This loss reads a number of the model on the host, which no graph can."""

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.drop = network(), nn.Dropout(0.1)

        def forward(self, inputs):
            bound = self.inner[0].bias.detach().sum().item()
            return self.drop(self.inner(inputs)) + bound * 0

    plan = Plan(sampling_rate=RATE, steps=20, aggregation=rule(GaussianTest(4.0)))
    step = Step(plan, Reading().cuda(), cross_entropy, expected_batch=40)
    with pytest.warns(RuntimeWarning, match="cannot be captured as a CUDA graph"):
        found = released(step, batches_of(6))
    assert all(gradient.isfinite().all() for gradient in found)
    assert torch.rand(3, device="cuda").isfinite().all()  # the default generator still works


@pytest.mark.parametrize(
    "corrupt",
    [
        None,
        lambda values, chunk, generator: {
            name: value + 1e-3 * torch.randn(value.shape, generator=generator, device="cuda")
            for name, value in values.items()
        },
    ],
    ids=["plain", "corrupted"],
)
@pytest.mark.parametrize("captures_optimizer", [True, False])
def test_a_run_that_cannot_be_captured_goes_on(captures_optimizer, corrupt):
    """And takes the same steps as without a graph."""

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, inputs):
            return self.inner(inputs) + self.inner[0].bias.detach().sum().item() * 0

    options = {"corrupt": corrupt} | ({} if captures_optimizer else {"scheduler": cosine})
    with pytest.warns(RuntimeWarning, match="cannot be captured as a CUDA graph"):
        captured = train(Reading(), RULES["gaussian"], graph=True, **options)
    eager = train(Reading(), RULES["gaussian"], graph=False, **options)
    torch.testing.assert_close(weights(captured.model), weights(eager.model), rtol=1e-8, atol=1e-8)
    assert captured.history == eager.history
