"""Exchange of textures between the objects of a home, so that no texture identifies a category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embodied_perceptron_training.homes.assets.objects import ObjectModel, PlacedObject
from embodied_perceptron_training.homes.rendering.materials import Material


def exchange_textures(
    objects: Sequence[PlacedObject], share: float, rng: np.random.Generator
) -> tuple[PlacedObject, ...]:
    """The objects of a home, of which a random ``share`` have the textures of others.

    Each solid material of such an object gets the texture of a random one of the whole home, and keeps its own colour
    and gloss. Pictures, lights and glass keep theirs. The object loses its word for the substance, which would mislead.
    """
    textures = sorted(
        {
            (m.texture, m.seed, m.scale_m)
            for o in objects
            for part in o.model.parts
            for m in part.mesh.materials
            if _is_solid(m)
        }
    )

    def other(material: Material) -> Material:
        texture, seed, scale_m = textures[int(rng.integers(len(textures)))]
        return replace(material, texture=texture, seed=seed, scale_m=scale_m, substance="")

    def changed(model: ObjectModel) -> ObjectModel:
        drawn = {m: other(m) for part in model.parts for m in part.mesh.materials if _is_solid(m)}
        parts = tuple(
            replace(p, mesh=replace(p.mesh, materials=tuple(drawn.get(m, m) for m in p.mesh.materials)))
            for p in model.parts
        )
        words = {kind: word for kind, word in model.attributes.items() if kind != "material"}
        return replace(model, parts=parts, attributes=words)

    chosen = rng.random(len(objects)) < share
    return tuple(replace(o, model=changed(o.model)) if c else o for o, c in zip(objects, chosen, strict=True))


def _is_solid(material: Material) -> bool:
    return not (material.is_image or material.emission > 0 or material.substance == "glass")
