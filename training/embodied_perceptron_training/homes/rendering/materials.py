"""Materials: colour, procedural texture, gloss, and their words in sentences.

Textures are seamless tiles, or small pictures with a named motif.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64

SIZE = 128  # texels per side, a power of two

Texture = NDArray[np.uint8]
Rgb = tuple[float, float, float]

# Motifs of pictures, posters and cushions; the data set's "depictions".
MOTIFS = ("mountain", "flower", "sun", "boat", "house", "tree", "cat", "fish", "heart", "abstract pattern")

# Common colour names as sRGB; the data set's texts use them.
COLORS: dict[str, Rgb] = {
    "white": (0.93, 0.92, 0.90),
    "gray": (0.55, 0.55, 0.56),
    "black": (0.10, 0.10, 0.11),
    "beige": (0.83, 0.76, 0.64),
    "brown": (0.45, 0.30, 0.19),
    "red": (0.72, 0.15, 0.13),
    "orange": (0.87, 0.47, 0.13),
    "yellow": (0.88, 0.75, 0.22),
    "green": (0.25, 0.47, 0.25),
    "blue": (0.17, 0.32, 0.58),
    "purple": (0.42, 0.25, 0.50),
    "pink": (0.86, 0.55, 0.60),
}
_WOODS: dict[str, tuple[str, Rgb]] = {
    "oak": ("brown", (0.70, 0.52, 0.33)),
    "walnut": ("brown", (0.37, 0.24, 0.15)),
    "pine": ("beige", (0.84, 0.68, 0.45)),
    "birch": ("beige", (0.86, 0.77, 0.60)),
    "cherry": ("brown", (0.55, 0.27, 0.16)),
    "painted": ("white", (0.90, 0.89, 0.86)),
    "ebony": ("black", (0.16, 0.13, 0.12)),
}


@dataclass(frozen=True)
class Material:
    """Appearance of a surface.

    Attributes:
        color: sRGB multiplier of the texture, each in [0, 1].
        texture: name of a tile (:func:`tile`; "plain" = none), or ``image:<kind>`` for one picture.
        seed: variant of the texture.
        scale_m: size of one repeat of the tile, metres.
        gloss: strength of the highlight, 0 .. 1.
        emission: emitted light (lamps, screens, windows).
        color_name, substance: words; empty where a word would mislead.
    """

    color: Rgb = (0.8, 0.8, 0.8)
    texture: str = "plain"
    seed: int = 0
    scale_m: float = 1.0
    gloss: float = 0.0
    emission: float = 0.0
    color_name: str = ""
    substance: str = ""

    @property
    def is_image(self) -> bool:
        """Whether texture coordinates span one picture instead of metres."""
        return self.texture.startswith("image:")


def _vary(rgb: Rgb, rng: np.random.Generator, amount: float = 0.05) -> Rgb:
    shift = 1 + rng.uniform(-amount, amount) + rng.uniform(-amount, amount, 3) * 0.4
    r, g, b = np.clip(np.asarray(rgb) * shift, 0.02, 0.98)
    return (float(r), float(g), float(b))


def _pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return str(names[int(rng.integers(len(names)))])


def colored(
    rng: np.random.Generator, substance: str, names: tuple[str, ...] = tuple(COLORS), **kwargs: object
) -> Material:
    """A material of ``substance`` in one of the named colours."""
    name = _pick(rng, names)
    return Material(_vary(COLORS[name], rng), color_name=name, substance=substance, **kwargs)  # type: ignore[arg-type]


def wood(rng: np.random.Generator, kinds: tuple[str, ...] = tuple(_WOODS)) -> Material:
    """Wood with grain."""
    kind = _pick(rng, kinds)
    name, rgb = _WOODS[kind]
    texture = "plain" if kind == "painted" else "wood"
    return Material(_vary(rgb, rng), texture, int(rng.integers(4)), 0.8, 0.15, 0.0, name, "wooden")


def fabric(rng: np.random.Generator, names: tuple[str, ...] = tuple(COLORS)) -> Material:
    """Upholstery and textiles."""
    texture = _pick(rng, ("weave", "weave", "felt", "stripes", "plain"))
    return colored(
        rng, "fabric", names, texture=texture, seed=int(rng.integers(4)), scale_m=float(rng.uniform(0.15, 0.3))
    )


def leather(rng: np.random.Generator) -> Material:
    """Leather."""
    return colored(
        rng, "leather", ("black", "brown", "white", "red", "beige"), texture="felt", seed=1, scale_m=0.4, gloss=0.3
    )


def metal(rng: np.random.Generator, names: tuple[str, ...] = ("gray", "gray", "black", "white")) -> Material:
    """Steel and painted metal."""
    return colored(rng, "metal", names, texture="brushed", seed=0, scale_m=0.3, gloss=0.6)


def plastic(rng: np.random.Generator, names: tuple[str, ...] = tuple(COLORS)) -> Material:
    """Smooth plastic."""
    return colored(rng, "plastic", names, gloss=0.3)


def ceramic(rng: np.random.Generator, names: tuple[str, ...] = ("white",)) -> Material:
    """Glazed ceramic."""
    return colored(rng, "ceramic", names, gloss=0.5)


def stone(rng: np.random.Generator) -> Material:
    """Counter tops and tiles."""
    return colored(
        rng,
        "stone",
        ("gray", "black", "white", "beige"),
        texture="marble",
        seed=int(rng.integers(3)),
        scale_m=0.9,
        gloss=0.4,
    )


def paper(rng: np.random.Generator, names: tuple[str, ...] = ("white", "beige", "yellow")) -> Material:
    """Paper and card."""
    return colored(rng, "paper", names)


def picture(kind: str, seed: int, emission: float = 0.0, gloss: float = 0.0) -> Material:
    """One picture spread over a face; ``kind`` as in :func:`image`."""
    return Material((1.0, 1.0, 1.0), f"image:{kind}", seed, 1.0, gloss, emission)


def glow(color: Rgb = (1.0, 0.95, 0.85), emission: float = 1.0) -> Material:
    """A light-emitting surface."""
    return Material(color, emission=emission)


def _noise(rng: np.random.Generator, cells: tuple[int, int], octaves: int = 4) -> F64:
    """(SIZE, SIZE) periodic noise in about [-1, 1]; ``cells`` = features along (rows, columns) in the first octave."""
    total = np.zeros((SIZE, SIZE))
    for octave in range(octaves):
        rows, columns = (min(SIZE, c << octave) for c in cells)
        lattice = rng.uniform(-1, 1, (rows, columns))
        lattice = np.pad(lattice, 2, mode="wrap")
        scale_r, scale_c = SIZE / rows, SIZE / columns
        y, x = np.meshgrid(np.arange(SIZE) / scale_r + 2, np.arange(SIZE) / scale_c + 2, indexing="ij")
        layer = cv2.remap(lattice.astype(np.float32), x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)
        total += layer * 0.5**octave
    return total / 1.5


def _gray(value: F64) -> Texture:
    """Brightness around 1 -> texture; 200 means 1, so that tiles can also brighten."""
    return np.repeat(np.clip(value * 200, 0, 255).astype(np.uint8)[..., None], 3, 2)


@lru_cache(maxsize=256)
def tile(kind: str, seed: int) -> Texture:
    """(SIZE, SIZE, 3) uint8 repeating tile that multiplies the colour (200 = 1). Raises ``ValueError`` if unknown."""
    rng = np.random.default_rng([seed, sum(kind.encode())])
    y, x = np.meshgrid(np.arange(SIZE) / SIZE, np.arange(SIZE) / SIZE, indexing="ij")
    if kind == "wood":
        # grain runs along u: slow along columns, fast along rows
        warp = _noise(rng, (4, 2), 3)
        rings = np.sin(2 * np.pi * (6 * y + 0.7 * warp))
        return _gray(0.93 + 0.10 * rings + 0.10 * _noise(rng, (32, 2), 2))
    if kind == "planks":
        row = np.floor(y * 8).astype(int)
        shade = rng.uniform(0.82, 1.08, 8)[row]
        offset = rng.uniform(0, 1, 8)[row]
        seam = ((y * 8) % 1 < 0.06) | (((x + offset) * 2) % 1 < 0.012)
        return _gray(np.where(seam, 0.55, shade + 0.08 * _noise(rng, (64, 4), 2)))
    if kind == "tiles":
        groove = ((x * 4) % 1 < 0.04) | ((y * 4) % 1 < 0.04)
        shade = rng.uniform(0.94, 1.04, (4, 4))[(y * 4).astype(int) % 4, (x * 4).astype(int) % 4]
        return _gray(np.where(groove, 0.62, shade + 0.03 * _noise(rng, (8, 8))))
    if kind == "checker":
        dark = (np.floor(x * 4) + np.floor(y * 4)) % 2 > 0
        return _gray(np.where(dark, 0.35, 1.05) + 0.02 * _noise(rng, (16, 16)))
    if kind == "brick":
        row = np.floor(y * 8)
        u = (x * 4 + 0.5 * (row % 2)) % 1
        groove = (u < 0.05) | ((y * 8) % 1 < 0.12)
        return _gray(np.where(groove, 1.15, 0.85 + 0.12 * _noise(rng, (8, 8))))
    if kind == "marble":
        veins = np.abs(_noise(rng, (3, 3), 5))
        return _gray(0.80 + 0.35 * np.clip(veins * 2.2, 0, 1) + 0.04 * _noise(rng, (32, 32), 2))
    if kind == "weave":
        thread = np.sin(2 * np.pi * 24 * x) * np.sin(2 * np.pi * 24 * y)
        return _gray(0.96 + 0.10 * thread + 0.06 * _noise(rng, (16, 16)))
    if kind == "felt":
        return _gray(0.98 + 0.10 * _noise(rng, (16, 16), 3))
    if kind == "carpet":
        return _gray(0.95 + 0.16 * _noise(rng, (48, 48), 2))
    if kind == "stripes":
        bands = np.sign(np.sin(2 * np.pi * int(rng.integers(3, 7)) * x))
        return _gray(0.95 + 0.18 * bands + 0.04 * _noise(rng, (32, 32), 2))
    if kind == "brushed":
        return _gray(0.97 + 0.07 * _noise(rng, (64, 2), 2))
    if kind == "plaster":
        return _gray(0.985 + 0.03 * _noise(rng, (8, 8), 4))
    if kind == "wallpaper":
        n = int(rng.integers(4, 8))
        motif = np.sin(2 * np.pi * n * x) * np.sin(2 * np.pi * n * y) > 0.55
        return _gray(np.where(motif, 0.80, 1.0) + 0.02 * _noise(rng, (16, 16), 2))
    if kind == "wicker":
        return _gray(0.85 + 0.25 * np.sign(np.sin(2 * np.pi * 12 * x)) * np.sign(np.sin(2 * np.pi * 12 * y)) * 0.5)
    if kind == "leaf":
        return _gray(0.9 + 0.25 * _noise(rng, (8, 8), 3))
    raise ValueError(f"unknown texture tile {kind!r}")


def _rgb(name: str) -> tuple[float, ...]:
    return tuple(255 * c for c in COLORS[name])


@lru_cache(maxsize=1024)
def image(kind: str, seed: int) -> Texture:
    """(SIZE, SIZE, 3) uint8 picture, row 0 on top. ``kind``: a motif, or screen, sky, cover, clock, keys, label, text,
    calendar, map. Raises ``ValueError`` if unknown."""
    rng = np.random.default_rng([seed, sum(kind.encode()), 7])
    names = list(COLORS)
    back, front, third = (str(n) for n in rng.choice(names, 3, replace=False))
    canvas = np.zeros((SIZE, SIZE, 3), np.float64)
    canvas[:] = _rgb(back)
    if kind in MOTIFS:
        _draw_motif(canvas, kind, front, third, rng)
    elif kind in _IMAGES:
        _IMAGES[kind](canvas, rng, front, third)
    else:
        raise ValueError(f"unknown picture {kind!r}")
    return np.clip(canvas + rng.normal(0, 3, canvas.shape), 0, 255).astype(np.uint8)


def _draw_motif(canvas: F64, motif: str, front: str, third: str, rng: np.random.Generator) -> None:
    s, f, t = SIZE, _rgb(front), _rgb(third)

    def polygon(points: list[tuple[float, float]], color: tuple[float, ...]) -> None:
        cv2.fillPoly(canvas, [np.round(np.array(points) * s).astype(np.int32)], color)

    def disc(x: float, y: float, r: float, color: tuple[float, ...]) -> None:
        cv2.circle(canvas, (int(x * s), int(y * s)), int(r * s), color, -1)

    if motif == "mountain":
        canvas[: s // 2] = _rgb("blue")
        polygon([(0.0, 1.0), (0.35, 0.2), (0.7, 1.0)], f)
        polygon([(0.4, 1.0), (0.72, 0.4), (1.0, 1.0)], t)
        polygon([(0.28, 0.36), (0.35, 0.2), (0.42, 0.36)], _rgb("white"))
    elif motif == "flower":
        cv2.line(canvas, (s // 2, s // 2), (s // 2, s), _rgb("green"), 5)
        for a in np.linspace(0, 2 * np.pi, 6, endpoint=False):
            disc(0.5 + 0.2 * np.cos(a), 0.42 + 0.2 * np.sin(a), 0.13, f)
        disc(0.5, 0.42, 0.11, _rgb("yellow"))
    elif motif == "sun":
        canvas[int(0.65 * s) :] = _rgb("blue")
        disc(0.5, 0.5, 0.24, _rgb("yellow"))
    elif motif == "boat":
        canvas[int(0.7 * s) :] = _rgb("blue")
        polygon([(0.2, 0.62), (0.8, 0.62), (0.68, 0.78), (0.32, 0.78)], _rgb("brown"))
        polygon([(0.48, 0.15), (0.48, 0.58), (0.78, 0.58)], f)
    elif motif == "house":
        canvas[int(0.75 * s) :] = _rgb("green")
        polygon([(0.25, 0.45), (0.75, 0.45), (0.75, 0.85), (0.25, 0.85)], f)
        polygon([(0.2, 0.45), (0.5, 0.18), (0.8, 0.45)], t)
        polygon([(0.44, 0.62), (0.56, 0.62), (0.56, 0.85), (0.44, 0.85)], _rgb("brown"))
    elif motif == "tree":
        canvas[int(0.8 * s) :] = _rgb("green")
        polygon([(0.46, 0.5), (0.54, 0.5), (0.54, 0.9), (0.46, 0.9)], _rgb("brown"))
        disc(0.5, 0.38, 0.24, _rgb("green"))
    elif motif == "cat":
        polygon([(0.28, 0.35), (0.32, 0.08), (0.48, 0.28)], f)
        polygon([(0.72, 0.35), (0.68, 0.08), (0.52, 0.28)], f)
        disc(0.5, 0.42, 0.24, f)
        disc(0.5, 0.85, 0.27, f)
        for x in (0.42, 0.58):
            disc(x, 0.4, 0.045, _rgb("yellow"))
    elif motif == "fish":
        canvas[:] = _rgb("blue")
        cv2.ellipse(canvas, (int(0.45 * s), s // 2), (int(0.28 * s), int(0.16 * s)), 0, 0, 360, f, -1)
        polygon([(0.68, 0.5), (0.9, 0.32), (0.9, 0.68)], f)
    elif motif == "heart":
        disc(0.36, 0.38, 0.18, f)
        disc(0.64, 0.38, 0.18, f)
        polygon([(0.2, 0.46), (0.8, 0.46), (0.5, 0.85)], f)
    else:
        for _ in range(7):
            x0, y0, x1, y1 = rng.uniform(0, 1, 4)
            polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], _rgb(str(rng.choice(list(COLORS)))))


def _screen(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    canvas[:] = (28, 44, 70)
    for _ in range(int(rng.integers(2, 5))):
        x, y = rng.uniform(0.03, 0.6, 2)
        w, h = rng.uniform(0.2, 0.38, 2)
        low, high = (int(x * SIZE), int(y * SIZE)), (int((x + w) * SIZE), int((y + h) * SIZE))
        cv2.rectangle(canvas, low, high, (225, 228, 232), -1)
        cv2.rectangle(canvas, low, (high[0], low[1] + 6), _rgb(front), -1)


def _sky(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    rows = np.linspace(0, 1, SIZE)[:, None, None]
    canvas[:] = (1 - rows) * np.array((150, 190, 240)) + rows * np.array((225, 235, 245))
    clouds = np.clip(_noise(rng, (3, 4), 4) * 1.4, 0, 1)[..., None]
    canvas[:] = canvas * (1 - clouds) + 250 * clouds
    skyline = (0.72 + 0.08 * _noise(rng, (1, 8), 2)[0]) * SIZE
    ground = np.arange(SIZE)[:, None] > skyline[None, :]
    canvas[ground] = (95, 125, 85)


def _cover(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    for row in rng.uniform(0.15, 0.4, 2):
        cv2.rectangle(canvas, (SIZE // 6, int(row * SIZE)), (5 * SIZE // 6, int(row * SIZE) + 7), _rgb(front), -1)
    cv2.circle(canvas, (SIZE // 2, int(0.68 * SIZE)), SIZE // 6, _rgb(third), -1)


def _clock(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    canvas[:] = 245
    middle = (SIZE // 2, SIZE // 2)
    cv2.circle(canvas, middle, SIZE // 2 - 3, (30, 30, 30), 5)
    for angle in np.arange(12) * np.pi / 6:
        end = (int(SIZE * (0.5 + 0.40 * np.sin(angle))), int(SIZE * (0.5 - 0.40 * np.cos(angle))))
        cv2.circle(canvas, end, 3, (30, 30, 30), -1)
    for length, angle in ((0.22, rng.uniform(0, 6.28)), (0.34, rng.uniform(0, 6.28))):
        end = (int(SIZE * (0.5 + length * np.sin(angle))), int(SIZE * (0.5 - length * np.cos(angle))))
        cv2.line(canvas, middle, end, (20, 20, 20), 4)


def _keys(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    canvas[:] = (35, 35, 38)
    for row in range(5):
        for column in range(14):
            x, y = 4 + column * 9 - (row % 2) * 2, 8 + row * 23
            cv2.rectangle(canvas, (x, y), (x + 6, y + 17), (88, 88, 94), -1)


def _label(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    cv2.rectangle(canvas, (0, SIZE // 3), (SIZE, 2 * SIZE // 3), _rgb("white"), -1)
    cv2.rectangle(canvas, (SIZE // 8, SIZE // 2 - 7), (7 * SIZE // 8, SIZE // 2 + 7), _rgb(front), -1)


def _text(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    canvas[:] = (244, 243, 238)
    for row in range(12, SIZE - 10, 9):
        cv2.line(canvas, (10, row), (int(SIZE * rng.uniform(0.55, 0.92)), row), (70, 70, 76), 2)


def _calendar(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    canvas[:] = 246
    canvas[: SIZE // 2] = _rgb(front)
    for row in range(5):
        for column in range(7):
            x, y = 8 + column * 16, SIZE // 2 + 8 + row * 11
            cv2.rectangle(canvas, (x, y), (x + 10, y + 6), (150, 150, 155), -1)


def _map(canvas: F64, rng: np.random.Generator, front: str, third: str) -> None:
    land = _noise(rng, (3, 4), 4) > 0.05
    canvas[:] = (150, 190, 220)
    canvas[land] = (190, 200, 140)


_IMAGES = {
    "screen": _screen,
    "sky": _sky,
    "cover": _cover,
    "clock": _clock,
    "keys": _keys,
    "label": _label,
    "text": _text,
    "calendar": _calendar,
    "map": _map,
}


def texture(name: str, seed: int) -> Texture:
    """Tile or picture by the texture name of a :class:`Material`."""
    return image(name.removeprefix("image:"), seed) if name.startswith("image:") else tile(name, seed)
