"""Real digits and a crafted initialisation: the setting of the black-box audit.

A network is first trained, without privacy, on digits that the audited runs never see, so that the
digits of the audited runs have small gradients from the first step on.
"""

import torch
from torch import Tensor, nn

from prudent.audit.training.black_box import AuditTarget
from prudent_lab.datasets import Dataset, load
from prudent_lab.models import multilayer_perceptron, tutorial_cnn


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each record."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def crafted(
    records: int = 1000,
    *,
    network: str = "perceptron",
    epochs: int = 30,
    public: int = 10_000,
    dataset: Dataset | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> AuditTarget:
    """Digits, a network that already fits others, and a digit with a wrong label as canary.

    Args:
        records: The number of digits that the audited runs train on.
        network: `perceptron` (one hidden layer of 32) or `cnn` (`tutorial_cnn`).
        epochs: Passes over the public digits before the audit; 0 leaves the weights random.
        public: The number of digits for that.
        dataset: The digits; None: MNIST.
        seed: Of the weights and of the order of digits.
        device: Where the public digits are learned.
    """
    data = load("mnist") if dataset is None else dataset
    shape = tuple(data.train_features.shape[1:])
    model: nn.Module
    if network == "cnn":
        model = tutorial_cnn(shape, data.classes, seed)  # type: ignore[arg-type]
    else:
        model = multilayer_perceptron(shape, data.classes, hidden=(32,), seed=seed)
    model.to(device)
    inputs, targets = data.train_features.to(device), data.train_labels.to(device)
    fit_public(model, inputs[-public:], targets[-public:], epochs, seed)
    # A digit that the network knows well, called by another name, has the largest loss.
    with torch.no_grad():
        worst = model(inputs[records : records + 500]).min(1)
    place = int(worst.values.argmin())
    canary = inputs[records + place], worst.indices[place]
    return AuditTarget(model, cross_entropy, inputs[:records], targets[:records], canary)


def fit_public(model: nn.Module, inputs: Tensor, targets: Tensor, epochs: int, seed: int) -> None:
    """Train without privacy on public records, in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for rows in torch.tensor_split(order, -(-len(order) // 128)):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[rows]), targets[rows]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    optimizer.zero_grad()
