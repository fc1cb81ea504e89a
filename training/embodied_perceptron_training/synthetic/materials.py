"""Materials by name: colour, procedural texture, gloss. What a sentence can say about an object's look starts here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Rgb = tuple[float, float, float]

# Names that a person would use, as sRGB. The language of the data set draws its colour words from here.
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
    """How a surface looks.

    Attributes:
        color: sRGB multiplier of the texture, each in [0, 1].
        texture: name of a tile of :mod:`textures` ("plain" = none), or ``image:<kind>`` for one picture.
        seed: variant of the texture.
        scale_m: metres that one repeat of the tile covers.
        gloss: strength of the highlight, 0 .. 1.
        emission: light that the surface gives by itself (lamps, screens, windows).
        color_name, substance: words for it; empty where a word would mislead.
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
        """Texture coordinates run over one picture rather than over metres."""
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
    """One picture spread over a face; ``kind`` as in :func:`textures.image`."""
    return Material((1.0, 1.0, 1.0), f"image:{kind}", seed, 1.0, gloss, emission)


def glow(color: Rgb = (1.0, 0.95, 0.85), emission: float = 1.0) -> Material:
    """A surface that gives light."""
    return Material(color, emission=emission)
