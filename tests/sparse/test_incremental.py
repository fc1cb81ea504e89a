"""What is kept of the last pass gives what a pass over everything gives, whatever happened to the sites."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.nn.backbone import BackboneConfig, MinkResNet
from embodied_perceptron.sparse.engine import TorchEngine
from embodied_perceptron.sparse.incremental import LayerMemory, largest_change
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

SIZE = 40
BACKBONE = BackboneConfig(3, 8, (8, 16, 16), (1, 2, 1), stem_stride=1, pool=False, stem_norm="batch")


def backbone(seed: int = 0) -> MinkResNet:
    torch.manual_seed(seed)
    net = MinkResNet(BACKBONE).eval()
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.2)
    return net


def room(rng: np.random.Generator) -> dict[tuple[int, ...], np.ndarray]:
    """A floor and two walls: site -> features."""
    coords = {(x, y, 0) for x in range(SIZE) for y in range(SIZE)}
    coords |= {(x, 0, z) for x in range(SIZE) for z in range(SIZE // 2)}
    coords |= {(0, y, z) for y in range(SIZE) for z in range(SIZE // 2)}
    return {c: rng.normal(size=3).astype(np.float32) for c in coords}


def tensor_of(world: dict[tuple[int, ...], np.ndarray], dtype: torch.dtype = torch.float32) -> SparseTensor:
    coords = torch.tensor(np.array(list(world)).reshape(-1, 3))
    feats = torch.from_numpy(np.array(list(world.values()), np.float32).reshape(-1, 3)).to(dtype)
    return SparseTensor.from_coords(coords, feats, batch_size=1, engine=TorchEngine())


def change(world: dict[tuple[int, ...], np.ndarray], rng: np.random.Generator) -> None:
    """One of the things that happen to a map, in place."""
    low = rng.integers(0, SIZE - 6, 3)
    here = [c for c in world if all(a <= v < a + 6 for v, a in zip(c, low, strict=True))]
    event = rng.choice(["seen", "born", "gone", "window", "all", "nothing"])
    if event == "seen":
        for c in here:
            world[c] = world[c] + rng.normal(size=3).astype(np.float32)
    elif event == "born":
        world.update({tuple(low + v): rng.normal(size=3).astype(np.float32) for v in rng.integers(0, 6, (40, 3))})
    elif event == "gone":
        for c in here:
            del world[c]
    elif event == "window":  # one strip leaves, another comes
        for c in [c for c in world if c[0] < 4]:
            del world[c]
        world.update({(SIZE + 3 - c[0] % 4, *c[1:]): v for c, v in list(world.items()) if c[0] < 8})
    elif event == "all":
        world.update({c: rng.normal(size=3).astype(np.float32) for c in world})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(6))
def test_a_pass_over_what_changed_equals_one_over_everything(seed: int, dtype: torch.dtype) -> None:
    rng, memory, net = np.random.default_rng(seed), LayerMemory(), backbone().to(dtype)
    world, shares = room(rng), []
    with torch.inference_mode():
        for _ in range(12):
            x = tensor_of(world, dtype)
            whole = net(x)
            with memory.over(x) as kept:
                levels = net(kept)
            for a, b in zip(levels, whole, strict=True):
                torch.testing.assert_close(a.keys, b.keys, rtol=0, atol=0)
                torch.testing.assert_close(a.feats, b.feats, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-12)
            shares.append(memory.computed / memory.outputs)
            change(world, rng)
    assert shares[0] == 1.0
    assert min(shares) < 0.5  # something was kept


def test_nothing_is_computed_where_nothing_changed() -> None:
    memory, net, world = LayerMemory(), backbone(), room(np.random.default_rng(0))
    with torch.inference_mode():
        for expected in (1.0, 0.0):
            with memory.over(tensor_of(world)) as x:
                first = net(x)
            assert memory.computed == expected * memory.outputs
            assert memory.outputs > 0
        with memory.over(tensor_of(world)) as y:
            assert y.sites is x.sites  # with its kernel maps
            assert all(a.sites is b.sites for a, b in zip(net(y), first, strict=True))


def test_a_small_change_costs_little() -> None:
    memory, net, world = LayerMemory(), backbone(), room(np.random.default_rng(0))
    with torch.inference_mode():
        for _ in range(2):
            with memory.over(tensor_of(world)) as x:
                net(x)
            world[(SIZE - 1, SIZE - 1, 0)] = np.ones(3, np.float32)
    assert memory.computed > 0
    assert memory.computed < 0.1 * memory.outputs


def test_other_weights_and_other_numbers_are_not_taken_for_those_of_before() -> None:
    memory, world = LayerMemory(), room(np.random.default_rng(0))
    with torch.inference_mode():
        for net in (backbone(0), backbone(1), backbone(1).double()):
            x = tensor_of(world, next(net.parameters()).dtype)
            with memory.over(x) as kept:
                levels = net(kept)
            torch.testing.assert_close(levels[-1].feats, net(x)[-1].feats, rtol=0, atol=1e-4)


def test_weights_that_change_in_place_are_noticed() -> None:
    memory, net, x = LayerMemory(), backbone(), tensor_of(room(np.random.default_rng(0)))
    for _ in range(2):
        with torch.inference_mode():
            with memory.over(x) as kept:
                levels = net(kept)
            torch.testing.assert_close(levels[-1].feats, net(x)[-1].feats, rtol=0, atol=1e-4)
        with torch.no_grad():
            net.layer1[0].conv2.kernel.mul_(1.5)


def test_a_number_that_is_none_stays_one_and_goes_again() -> None:
    memory, net, world = LayerMemory(), backbone(), room(np.random.default_rng(0))
    with torch.inference_mode():
        for value in (torch.nan, torch.nan, 1.0):
            read = tensor_of(world)
            read.feats[len(read) // 2] = value
            with memory.over(read) as x:
                levels = net(x)
            whole = net(read)
            torch.testing.assert_close(levels[0].feats, whole[0].feats, rtol=0, atol=1e-4, equal_nan=True)


def test_only_the_pass_keeps_anything() -> None:
    """What others compute with the results of a pass, later or in another thread, is theirs."""
    memory, net, world = LayerMemory(), backbone(), room(np.random.default_rng(0))
    seen = []

    def other() -> None:
        with torch.inference_mode():
            seen.append(net(SparseTensor(x.sites, x.feats + 1))[0].feats)

    with torch.inference_mode():
        with memory.over(tensor_of(world)) as x:
            net(x)
            computed = memory.outputs
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        other()
        assert memory.outputs == computed
        torch.testing.assert_close(*seen)
        with memory.over(tensor_of(world)) as x:
            net(x)
        assert memory.computed == 0


def test_learning_is_left_alone() -> None:
    memory, net = LayerMemory(), backbone()
    with memory.over(tensor_of(room(np.random.default_rng(0)))) as x:
        net(x)[-1].feats.square().sum().backward()
    assert memory.outputs == 0
    assert net.conv1.kernel.grad is not None
    assert float(net.conv1.kernel.grad.abs().sum()) > 0


def test_memory_is_that_of_one_pass() -> None:
    memory, net, rng = LayerMemory(), backbone(), np.random.default_rng(3)
    world = room(rng)
    sizes = []
    with torch.inference_mode():
        for _ in range(30):
            with memory.over(tensor_of(world)) as x:
                net(x)
            sets = [s for place in memory.sites._last.values() for s in place]
            sizes.append((len(sets), len(memory._layers), sum(len(s._maps) for s in sets)))
            change(world, rng)
    assert {s[0] for s in sizes} == {len(BACKBONE.channels) + 1}
    assert {s[1] for s in sizes} == {sizes[0][1]}
    assert max(s[2] for s in sizes) <= sizes[0][2]


def test_a_memory_is_freed_with_all_that_it_holds() -> None:
    """By counting references: results of a pass may live on."""
    gc.disable()
    try:
        memory, net = LayerMemory(), backbone()
        with torch.inference_mode(), memory.over(tensor_of(room(np.random.default_rng(0)))) as x:
            level = net(x)[-1]
        refs = [weakref.ref(memory), weakref.ref(memory.sites), weakref.ref(x.sites)]
        del memory, x
        assert [ref() for ref in refs] == [None, None, None]
        with torch.inference_mode():
            assert len(net.layer3[0].conv2(level)) == len(level)
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(5))
def test_largest_change_is_that_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = room(rng)
    last = tensor_of(world)
    change(world, rng)
    new, cell = tensor_of(world), 8
    sums: dict[tuple[int, ...], float] = {}
    rows = [dict(zip(map(tuple, t.coords.tolist()), t.feats, strict=True)) for t in (last, new)]
    for c in {*rows[0], *rows[1]}:
        both = [r.get(c) for r in rows]
        difference = 1.0 if both[0] is None or both[1] is None else float((both[0] - both[1]).abs().max())
        place = tuple(v // cell for v in c)
        sums[place] = sums.get(place, 0.0) + difference
    assert largest_change(last, new, cell) == pytest.approx(max(sums.values()), rel=1e-5)
    with device_path():
        assert largest_change(last, new, cell) == pytest.approx(max(sums.values()), rel=1e-5)


def test_largest_change_of_the_same_and_of_nothing() -> None:
    x = tensor_of(room(np.random.default_rng(0)))
    nothing = SparseTensor(Sites(x.keys[:0], 1, 1, TorchEngine()), x.feats[:0])
    assert largest_change(x, SparseTensor(Sites(x.keys.clone(), 1, 1, TorchEngine()), x.feats), 8) == 0
    assert largest_change(nothing, nothing, 8) == 0
    assert largest_change(nothing, x, SIZE) == largest_change(x, nothing, SIZE) == len(x)
