import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from prudent_lab import datasets, models
from prudent_lab.features import resnet

DATA = os.environ.get("PRUDENT_DATA")
WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(resnet.ResNet18Features().state_dict(), path)
    return path


def test_a_file_with_fewer_stages_gives_fewer(whole, tmp_path):
    network = resnet.resnet18(whole)
    assert network.width == 512
    kept = {k: v for k, v in network.state_dict().items() if not k.startswith(("layer3", "layer4"))}
    save_file(kept, tmp_path / "short.safetensors")
    short = resnet.resnet18(tmp_path / "short.safetensors")
    assert short.width == 128
    assert short(torch.randn(3, 3, 32, 32)).shape == (3, 128)
    assert not any(parameter.requires_grad for parameter in short.parameters())


def test_a_block_adds_its_input():
    block = resnet._Block(2, 3, 2).requires_grad_(False)
    images = torch.randn(1, 2, 8, 8)
    first = nn.functional.conv2d(images, block.conv1.weight, block.conv1.bias, 2, 1).relu()
    second = nn.functional.conv2d(first, block.conv2.weight, block.conv2.bias, padding=1)
    assert torch.allclose(block(images), (second + block.downsample(images)).relu(), atol=1e-6)


VGG16 = (64, 64, "pool", 128, 128, "pool", *[256] * 3, "pool", *[512] * 3, "pool", *[512] * 3)


def test_vgg16_has_the_published_names_and_shapes():
    expected, inputs, place = {}, 3, 0
    for width in VGG16:
        if width == "pool":
            place += 1
            continue
        expected[f"features.{place}.weight"] = (width, inputs, 3, 3)
        expected[f"features.{place}.bias"] = (width,)
        inputs, place = width, place + 2
    with torch.device("meta"):
        ours = models.VGG16Features().state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == expected


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_vgg16_is_read_in_single_and_half_precision(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(models, "_VGG16_WIDTHS", ((2, 3), (4,), (5,), (6,), (7,)))
    torch.manual_seed(0)
    network = models.VGG16Features().eval().requires_grad_(False)
    stored = {name: tensor.to(kind) for name, tensor in network.state_dict().items()}
    save_file(stored, tmp_path / "vgg16-features.safetensors")
    read = models.vgg16(tmp_path / "vgg16-features.safetensors")
    inputs = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(read(inputs), network(inputs), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(read(inputs), read.features(inputs).mean((2, 3)))
    assert not any(parameter.requires_grad for parameter in read.parameters())
    assert {tensor.dtype for tensor in read.state_dict().values()} == {torch.float32}


@pytest.mark.thorough
def test_weights_of_another_network_are_refused(whole, tmp_path):
    with pytest.raises(ValueError, match=r"weights of a VGG16Features, got no tensor .* and more"):
        models.vgg16(whole)
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="weights of a ResNet18Features"):
        resnet.resnet18(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="Expected a file of weights"):
        resnet.resnet18(tmp_path / "none.safetensors")


def test_weights_are_found_where_data_are(tmp_path, monkeypatch):
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Put the file into one of .*PRUDENT_DATA"):
        resnet.find_weights("net.pth")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "net.pth").touch()
    assert resnet.find_weights("net.pth") == tmp_path / "weights" / "net.pth"


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    train, test = torch.rand(5, 3, 8, 8, generator=generator), torch.rand(3, 3, 8, 8)
    labels = torch.zeros(8, dtype=torch.int64)
    return datasets.Dataset("images", train, labels[:5], test, labels[:3], 2, "Made here.")


class _Means(nn.Module):
    """Channel means and a weight: simple enough to know the answer."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.mean((2, 3)) * self.weight


def test_images_are_resized_and_standardised():
    data = images()
    features = models.with_features(data, _Means(2.0), size=16)
    resized = nn.functional.interpolate(data.train_features, (16, 16), mode="bilinear")
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = 2 * (resized.mean((2, 3)) - mean) / deviation
    torch.testing.assert_close(features.train_features, expected, rtol=1e-4, atol=1e-5)
    assert features.test_features.shape == (3, 3)
    assert features.train_labels.equal(data.train_labels)
    assert features.note == "Made here. Features of _Means at 16 × 16."


def test_features_are_kept_until_something_changes():
    data, network = images(), _Means(1.0)
    first = models.with_features(data, network, size=16)
    again = models.with_features(data, network, size=16)
    assert network.calls == 2
    assert first.train_features.equal(again.train_features)
    models.with_features(data, network, size=12)
    assert network.calls == 4
    changed = models.with_features(data, _Means(3.0), size=16)
    torch.testing.assert_close(changed.train_features, 3 * first.train_features)
    other = models.with_features(images(seed=1), network, size=16)
    assert not other.train_features.equal(first.train_features)


def test_only_colour_images_have_features():
    data = datasets.Dataset(
        "table", torch.zeros(2, 4), torch.zeros(2).long(), torch.zeros(1, 4), torch.zeros(1).long(),
        1, "",
    )  # fmt: skip
    with pytest.raises(ValueError, match="Expected RGB images"):
        models.with_features(data, _Means(1.0))


@pytest.mark.skipif(DATA is None, reason="PRUDENT_DATA is not set: no folder with weights")
def test_the_pretrained_network_in_the_data_folder():
    if not (Path(DATA) / "weights" / WEIGHTS).is_file():
        pytest.skip(f"PRUDENT_DATA holds no weights/{WEIGHTS}")
    network = resnet.resnet18(resnet.find_weights(WEIGHTS))
    assert network.width == 256
    features = network(torch.randn(4, 3, 64, 64))
    assert features.isfinite().all()
    assert (features > 0).float().mean() > 0.5
