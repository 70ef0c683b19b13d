"""Runs that one process and several must carry out alike, and the processes that do.

    python -m tests.training.worlds FOLDER COUNT

runs every scenario in a group of processes and leaves what came of each in FOLDER/all/RANK.pt; then
kills one of two processes in the middle of a run, and resumes that run with COUNT of them.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # what an optimizer imports: once, before forking
from torch import distributed, nn
from torch.utils.data import Dataset

from prudent.accounting import GaussianTest
from prudent.cli import main as main_of_the_command_line
from prudent.training import (
    AdaptiveTrim,
    Chunk,
    EngineChoice,
    Execution,
    Fallback,
    FixedTrim,
    HeldOut,
    Mean,
    Plan,
    PoissonSampler,
    ProposeTestRelease,
    Step,
    Sum,
    TrimmedSum,
    fit,
)
from prudent.training.keystream import Key
from prudent.training.parallel import DistributedGroup, Processes, join, whole
from prudent.training.run import execution
from prudent.training.run.checkpoint import ReleaseDigests
from tests.archives import save_easy_classes
from tests.servers import free_port
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
RECORDS, STEPS, SEED = 47, 12, 3
EXPECTED = ("The noise is predictable", "The run goes on after step 9 with a new key")
FEW = 6  # steps of a run that is neither stopped nor resumed
SCENARIOS: dict[str, Callable[[Path], dict]] = {}
SUM = Sum(clip=1.0, noise_multiplier=0.8)
ADAPTIVE = AdaptiveTrim(first=0.4, up=0.1, down=0.1, most=1.0)
TRIMMED = TrimmedSum(clip=1.0, noise_multiplier=0.8, trim=FixedTrim(0.3))


def propose(trim=ADAPTIVE, scale=1.0, **changes):
    settings = {"clip": 1.0, "propose": 0.5, "noise_multiplier": 0.8, "failure": 1e-2}
    return ProposeTestRelease(test=GaussianTest(scale), trim=trim, **(settings | changes))


def device():
    """Where runs take place, unless their model is divided."""
    return os.environ.get("PRUDENT_TEST_DEVICE", "cpu")


def is_together():
    return distributed.is_available() and distributed.is_initialized()


def rank():
    return distributed.get_rank() if is_together() else 0


def network(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    parts = [nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.LayerNorm(7), nn.Linear(7, 3)]
    return nn.Sequential(*parts).double()


def records(count=RECORDS):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return inputs * torch.linspace(0.1, 3, count)[:, None], torch.arange(count) % 3


def same_norms():
    """Directions differ and clipped norms do not, so that record ids alone decide who is kept."""
    inputs, targets = records()
    return 50 * inputs, targets


def result(fitted, model=None):
    model = fitted.model if model is None else model
    return {
        "parameters": torch.cat([whole(p).flatten() for p in model.parameters()]).cpu(),
        "pass_rate": fitted.pass_rate,
        "trims": [entry.trim for entry in fitted.history],
        "shown": [entry.evaluation for entry in fitted.history],
    }


def train(
    rule=SUM,
    data=None,
    model=None,
    rate=0.3,
    steps=FEW,
    how=None,
    num_bands=1,
    held_out=None,
    **options,
):
    settings = {"evaluate_every": 3, "lr": 0.3}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The test hardly ever passes")  # as some are meant to
        return fit(
            Plan(
                sampling_rate=rate,
                steps=steps,
                aggregation=rule,
                num_bands=num_bands,
                held_out=held_out,
            ),
            network() if model is None else model,
            cross_entropy,
            records() if data is None else data,
            execution=Execution(**({"seed": SEED, "device": device()} | (how or {}))),
            **gathered(settings | options),
        )


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def simple(name, *arguments, data=None, **options):
    """A scenario that is one call of `train`; `data` is made when it runs."""

    def run(folder):
        return result(train(*arguments, data=None if data is None else data(), **options))

    SCENARIOS[name] = run


class Items(Dataset):
    """Refuses to be asked for a record of another process; so it declares what it holds."""

    fingerprint = "records()"

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        count = distributed.get_world_size() if is_together() else 1
        assert index % count == rank()
        inputs, targets = records()
        return inputs[index], int(targets[index])


def louder(gradients, chunk, generator):
    """Records with an odd id send more."""
    odd = (chunk.ids % 2).double()
    return {n: g * (1 + 3 * odd.view(-1, *[1] * (g.ndim - 1))) for n, g in gradients.items()}


simple(
    "held_out",
    held_out=HeldOut(every=2, noise_multiplier=4.0),
    held_out_set=records(19),
    patience=3,
    keep_best=True,
)
simple("sum", SUM, steps=STEPS)
simple("correlated", SUM, num_bands=3, steps=STEPS)
simple("mean", Mean())
simple("trimmed", TRIMMED)
simple("passing", propose(FixedTrim(0.9), scale=0.1, clip=20.0))
simple("failing", propose(FixedTrim(0.0), scale=0.1))
simple("mixed", propose(), steps=STEPS)
simple("skipping", propose(fallback=Fallback.SKIP))
simple("ties", TRIMMED, data=same_norms)
simple("sparse", propose(scale=0.1), rate=0.03, steps=STEPS)
simple("everyone", TRIMMED, rate=1.0)
simple("chunks", propose(), how={"physical_batch": 2})
simple("recompute", TRIMMED, how={"physical_batch": 3, "engine": "bookkeeping", "recompute": True})
simple("materialised", TRIMMED, how={"engine": EngineChoice.MATERIALISED})
simple("adam", propose(), optimizer=torch.optim.Adam)
simple("corrupted", TRIMMED, corrupt=louder)
simple("items", SUM, data=Items, example=(records()[0][0], 0))
simple("averaged", SUM, average=0.8)
simple("people", propose(), unit=[number % 11 for number in range(RECORDS)], records_per_person=3)


@scenario
def strangers(folder):
    """Every process begins with other parameters: those of the first count."""
    return result(train(model=network(seed=rank())))


@scenario
def wrapped(folder):
    model = network(seed=rank())
    if is_together():
        model = nn.parallel.DistributedDataParallel(model)
    fitted = train(propose(), model=model, evaluate=looked_at)
    assert fitted.model is model
    return result(fitted)


def sharded(model, whole_layers=False, copies=1):
    if is_together():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shape = (copies, distributed.get_world_size() // copies)
        mesh = init_device_mesh("cpu", shape if copies > 1 else shape[1:])
        for layer in [] if whole_layers else [model[0], model[4]]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def looked_at(model):
    """An evaluation; with shards it gathers them, in all processes."""
    with torch.no_grad():
        inputs = records()[0].to(next(model.parameters()).device)
        return {"mean": float(model(inputs).square().mean())}


def sharded_run(folder, **options):
    places = {name: options.pop(name) for name in ("whole_layers", "copies") if name in options}
    model = sharded(network(), **places)
    options["how"] = {"device": "cpu"}
    fitted = train(propose(), model=model, evaluate=looked_at, **options)
    if is_together():
        for parameter in model.parameters():
            assert parameter.to_local().numel() < parameter.numel()
            assert type(parameter.grad) is type(parameter.data)
    return result(fitted)


@scenario
def shards(folder):
    return sharded_run(folder)


@scenario
def shards_adam(folder):
    return sharded_run(folder, whole_layers=True, optimizer=torch.optim.Adam)


def stopped_and_resumed(folder, make_model, *, repeats):
    """A whole run, and one that goes on from the checkpoint it left halfway.

    Args:
        folder: Where.
        make_model: Makes the model.
        repeats: Whether steps since the checkpoint are repeated, which needs a fingerprint.
    """
    looks = []

    def copy():
        if not (folder / "copy").exists() and rank() == 0:
            shutil.copytree(folder / "whole", folder / "copy")

    def looking(model):
        looks.append(None)
        if len(looks) == 4 and repeats:  # the first is the rehearsal
            copy()  # before the checkpoint of step 9
        return looked_at(model)

    def called(model, metrics):
        if metrics.step == 9:
            copy()  # after it

    options = {"optimizer": torch.optim.Adam, "evaluate": looking, "how": {"device": "cpu"}}
    options |= {"steps": STEPS, "callbacks": [called]}
    whole_run = result(train(propose(), model=make_model(), out=folder / "whole", **options))
    looks.extend([None] * 10)
    model = make_model()
    resumed = train(propose(), model=model, out=folder / "copy", resume=True, **options)
    assert [entry.step for entry in resumed.history] == ([9, 12] if repeats else [12])
    assert torch.equal(result(resumed)["parameters"], whole_run["parameters"])
    return whole_run


@scenario
def shards_copied(folder):
    """Divided within a machine, copied between machines; two processes are one machine."""
    copies = distributed.get_world_size() // 2 if is_together() else 1
    return sharded_run(folder, copies=copies)


@scenario
def shards_resumed(folder):
    """Checkpoints are of the whole, from shards and into shards."""
    return stopped_and_resumed(folder, lambda: sharded(network()), repeats=False)


@scenario
def dropout_resumed(folder):
    """Masks belong to records: they go on, and are those of one process."""
    return stopped_and_resumed(folder, lambda: network(dropout=0.3), repeats=True)


@scenario
def own_loop(folder):
    """What one writes around `Step`."""
    processes = join(CPU)
    plan = Plan(sampling_rate=0.3, steps=FEW, aggregation=propose())
    model, (inputs, targets) = network(), records()
    step = Step(
        plan,
        model,
        cross_entropy,
        expected_batch=0.3 * RECORDS,
        key=Key.from_seed(SEED),
        processes=processes,
    )
    sampler = PoissonSampler(RECORDS, 0.3, key=Key.from_seed(SEED), processes=processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    drawn = []
    for number in range(FEW):
        batch = sampler.batch(number)
        rows = zip(batch.ids, batch.valid, strict=True)
        outcome = step([Chunk(inputs[ids], targets[ids], valid, ids) for ids, valid in rows])
        drawn.append(int(outcome.drawn))
        optimizer.step()
    return {
        "parameters": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "drawn": drawn,
    }


class Hungry(nn.Module):
    """Asks for more memory than there is, in rank 1 and after the first evaluation."""

    looks = 0

    def forward(self, inputs):
        if self.looks == 2 and rank() == 1:
            torch.empty(1 << 60)
        return inputs

    def look(self, model):
        self.looks += 1  # the first is the rehearsal
        return {}


def resumable(folder, *, optimizer=torch.optim.Adam, resume=False, **options):
    options |= {"out": folder, "resume": resume, "optimizer": optimizer, "steps": STEPS}
    return result(train(propose(), lr=0.05, **options))


def starved(folder):
    """A run in which one of the processes runs out of memory."""
    hungry = Hungry()
    model = nn.Sequential(*network(), hungry)
    return resumable(folder, model=model, evaluate=hungry.look)


SCENARIOS["uninterrupted"] = resumable


def refused(name, message, function):
    """A scenario that ends with an error in every process."""

    def run(folder):
        try:
            function()
        except ValueError as error:
            return {"refused": message in str(error) or str(error)}
        return {"refused": False}

    SCENARIOS["refused_" + name] = run


def step_of(model=None, expected_batch=14.0, **options):
    plan = Plan(sampling_rate=0.3, steps=1, aggregation=SUM)
    model = network() if model is None else model
    return Step(plan, model, cross_entropy, expected_batch=expected_batch, **options)


def release(**ids):
    """The likeliest mistake in a loop of one's own: every process takes the whole batch."""
    step_of(processes=join(CPU))([Chunk(*records(), **ids)])


refused("plans", "Expected plan the same", lambda: train(rate=0.3 + 0.01 * rank()))
refused(
    "data",
    "Expected train_set with the same records in the same order in every process, got different",
    lambda: train(data=records(RECORDS + rank())),
)
refused(
    "order",
    "Expected train_set with the same records in the same order",
    lambda: train(data=tuple(leaf.roll(rank(), 0) for leaf in records())),
)
refused(
    "sampler",
    "Expected rate the same",
    lambda: PoissonSampler(
        RECORDS, 0.3 + 0.1 * rank(), key=Key.from_seed(SEED), processes=join(CPU)
    ),
)
refused(  # the smaller, the more each of them would count
    "divisor",
    "Expected expected_batch the same",
    lambda: step_of(expected_batch=14.0 - rank(), processes=join(CPU)),
)
refused("few", "Expected train_set with at least one record", lambda: train(data=records(1)))
refused(
    "shared",
    "Expected every record in one process alone",
    lambda: release(ids=torch.arange(RECORDS)),
)
refused("ids", "Expected ids in every Chunk", release)
refused(
    "wrapped",
    "Expected model a DistributedDataParallel of the 1",
    lambda: step_of(nn.parallel.DistributedDataParallel(network())),
)
refused("mesh", "Expected model sharded over the 1 processes", lambda: step_of(sharded(network())))


@scenario
def first_part(folder):
    """A repeated release that differs in the part of another process is admitted by none."""
    folder.mkdir(parents=True, exist_ok=True)
    key, part, admitted = Key.from_seed(SEED), torch.ones(3), []
    for shift in (0, 0, rank()):
        digests = ReleaseDigests(folder, join(CPU))
        admitted.append(digests.admits(key, "1", [part + shift]))
    return {"refused": admitted == [True, True, False]}


@scenario
def first_error(folder):
    """What goes wrong in the first process stops all."""
    train(out=folder / "run")
    try:
        train(out=folder / "run")
    except ValueError as error:
        return {"refused": "folder without a run" in str(error)}
    return {"refused": False}


def broken(name, change):
    """A run with a mistake built in, which must not come out as one process's."""

    def run(folder):
        put_back = change() if is_together() else lambda: None
        try:
            return result(train(TRIMMED, data=same_norms()))
        finally:
            put_back()

    SCENARIOS["broken_" + name] = run


def noise_everywhere():
    original = Step._write_noisy_mean

    def noisy(self, released, parameters):
        if self.processes.rank > 0:
            for value in released.total.values():
                self.noise.add_(value.view(-1), released.outcome.noise, self.state)
        return original(self, released, parameters)

    Step._write_noisy_mean = noisy
    return lambda: setattr(Step, "_write_noisy_mean", original)


def processes_that(kind):
    def change():
        execution.join = lambda device: kind()
        return lambda: setattr(execution, "join", join)

    return change


class Loners(DistributedGroup):
    """Weights and test from one's own norms."""

    def decide(self, norms, valid, ids, rows, decide):
        return Processes.decide(self, norms, valid, ids, rows, decide)


class Queue(DistributedGroup):
    """Ties go to the records of the first process, whatever their ids."""

    def decide(self, norms, valid, ids, rows, decide):
        return super().decide(norms, valid, ids + self.rank * 1000, rows, decide)


broken("not_at_all", lambda: lambda: None)
broken("noise", noise_everywhere)
broken("local", processes_that(Loners))
broken("order", processes_that(Queue))


def run_all(folder, names):
    """What came of each scenario, or the error it ended with."""
    outcomes = {}
    for name in names:
        try:
            outcomes[name] = SCENARIOS[name](folder / name)
        except Exception:
            outcomes[name] = traceback.format_exc()
    return outcomes


class Fatal:
    """Kills the process of rank 1 when it evaluates step 9: nothing after it happens there."""

    def __init__(self):
        self.looks = 0

    def __call__(self, model):
        self.looks += 1  # the first is the rehearsal
        if self.looks == 4 and rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


def meet(folder, rank, count):
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=600),
    )


def named(port):
    """What torchrun does: the environment says who a process is, and where to meet the others."""

    def meet(folder, rank, count):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ["TORCHELASTIC_RUN_ID"] = "run"

    return meet


def command(archive, out):
    """A run of the command line."""
    given = ["train", "--dataset", f"npz:{archive}", "--batch", "40", "--json"]
    given += ["--method", "trimmed", "--noise-multiplier", "2", "--steps", "12", "--seed", "0"]
    return [*given, "--out", str(out)]


def commanded(folder):
    """The exit status of a command in a folder with `easy.npz`."""
    status = main_of_the_command_line(command(folder / "easy.npz", folder / "run"))
    sys.stdout.flush()
    return status


def member(folder, rank, count, task, meet):
    """One process of a group: its exit status. What it says and leaves are files of its own."""
    said = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        meet(folder, rank, count)
        torch.save(task(), folder / f"{rank}.pt")
        distributed.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0


def world(folder, count, task, meet=meet):
    """Exit statuses of the processes of a group, forked: what is imported is imported once."""
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os._exit(member(folder, rank, count, task, meet))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main():
    folder, count, few = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    if few:
        statuses = {"all": world(folder / "all", count, lambda: run_all(folder / "runs", few))}
        (folder / "statuses.json").write_text(json.dumps(statuses))
        return
    killed, resumed = folder / "killed" / "run", folder / "resumed" / "run"
    statuses = {
        "all": world(folder / "all", count, lambda: run_all(folder / "runs", SCENARIOS)),
        "killed": world(killed.parent, 2, lambda: resumable(killed, evaluate=Fatal())),
    }
    hungry = folder / "hungry" / "run"
    statuses["hungry"] = world(hungry.parent, 2, lambda: starved(hungry))
    shutil.copytree(killed, resumed)
    statuses["resumed"] = world(resumed.parent, count, lambda: resumable(resumed, resume=True))
    told = folder / "told"
    told.mkdir()
    save_easy_classes(told / "easy.npz")
    statuses["told"] = world(told, 2, lambda: commanded(told), named(free_port()))
    (folder / "statuses.json").write_text(json.dumps(statuses))


class Group:
    """The groups of `count` processes, as all scenarios left them, or the few that are named.

    Whoever asks first for a folder starts them; others wait, and find what they left.
    """

    def __init__(self, folder, count, *few):
        self.folder, self.count, self.few = folder, count, few
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "statuses.json").exists():
                self._start()
        self.statuses = json.loads((folder / "statuses.json").read_text())

    def _start(self):
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        said = [part for one in EXPECTED for part in ("-W", f"ignore:{one}")]
        command = [sys.executable, "-W", "error", *said, "-m", "tests.training.worlds"]
        subprocess.run(
            [*command, str(self.folder), str(self.count), *self.few],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            timeout=900,
            check=True,
        )

    def said(self, part, rank):
        return (self.folder / part / f"{rank}.txt").read_text()

    def left(self, part):
        """What each process of a part left behind, if all came to their end."""
        assert self.statuses[part] == [0] * self.count, self.said(part, 0)
        return [torch.load(self.folder / part / f"{rank}.pt") for rank in range(self.count)]


if __name__ == "__main__":
    main()
