"""Object models with parts, joints and surfaces, and their instances in a home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from embodied_perceptron.geometry.transforms import F64, invert_transform, make_transform, transform_points
from embodied_perceptron_training.homes.assets.mesh import Mesh, MeshBuilder, Piece, merge_meshes, rotation


@dataclass(frozen=True, eq=False)
class Joint:
    """One degree of freedom of a part, from 0 (closed) to 1 (open).

    Attributes:
        kind: revolute (radians) or prismatic (metres).
        axis: (3,) unit axis in the object frame.
        origin_m: (3,) a point on the axis.
        upper: motion at state 1, signed.
    """

    kind: Literal["revolute", "prismatic"]
    axis: tuple[float, float, float]
    origin_m: tuple[float, float, float]
    upper: float

    def transform(self, state: float) -> F64:
        """Pose change (4, 4) of the part at ``state``. Raises ``ValueError`` outside of [0, 1]."""
        if not 0.0 <= state <= 1.0:
            raise ValueError(f"joint state must be in [0, 1], got {state}")
        axis = np.asarray(self.axis, np.float64)
        if self.kind == "prismatic":
            return make_transform(np.eye(3), axis * self.upper * state)
        angle = self.upper * state
        K = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
        R = np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K
        origin = np.asarray(self.origin_m, np.float64)
        return make_transform(R, origin - R @ origin)


@dataclass(frozen=True, eq=False)
class Part:
    """A named rigid piece of a model; ``joint`` is None for the fixed body."""

    name: str
    mesh: Mesh
    pieces: tuple[Piece, ...]
    joint: Joint | None = None


@dataclass(frozen=True)
class Surface:
    """A horizontal rectangle in the object frame on which objects can stand.

    Attributes:
        center_m: (x, y, z) of its middle.
        half_m: half width (x) and half depth (y).
        clearance_m: free height above it.
        relation: "ontop", or "inside" for shelves within and containers.
        accepts: kind of small objects for it (keys of the tables in ``building/furnishing.py``).
    """

    center_m: tuple[float, float, float]
    half_m: tuple[float, float]
    clearance_m: float = 0.6
    relation: Literal["ontop", "inside"] = "ontop"
    accepts: str = "any"


@dataclass(frozen=True, eq=False)
class ObjectModel:
    """Geometry in the object frame and words of one object.

    Attributes:
        category: EmbodiedScan name.
        parts: the fixed body first.
        surfaces: places for small objects.
        attributes: words by kind: color, material, style, depiction, size.
        synonyms: other common names.
        has_front: whether "in front of it" is meaningful.
        states: initial states, such as ("filled",) or ("folded",).
        box_part: moving part that the box follows (a door's leaf); empty = the body.
    """

    category: str
    parts: tuple[Part, ...]
    surfaces: tuple[Surface, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    synonyms: tuple[str, ...] = ()
    has_front: bool = True
    states: tuple[str, ...] = ()
    box_part: str = ""

    def box_frame(self, states: Mapping[str, float] | None = None) -> F64:
        """(4, 4) pose of the axes of its tight box in the object frame."""
        for part in self.parts:
            if part.name == self.box_part and part.joint is not None:
                return part.joint.transform((states or {}).get(part.name, 0.0))
        return np.eye(4)

    def posed_mesh(self, states: Mapping[str, float] | None = None) -> Mesh:
        """One mesh in the object frame, with joints at ``states`` (part name -> 0..1, missing = closed)."""
        meshes = []
        for part in self.parts:
            state = (states or {}).get(part.name, 0.0)
            meshes.append(part.mesh.transformed(part.joint.transform(state)) if part.joint and state else part.mesh)
        return merge_meshes(meshes)

    def posed_pieces(self, states: Mapping[str, float] | None = None) -> list[Piece]:
        """Collision boxes in the object frame, with joints at ``states``."""
        pieces: list[Piece] = []
        for part in self.parts:
            state = (states or {}).get(part.name, 0.0)
            if part.joint is None or state == 0.0:
                pieces.extend(part.pieces)
                continue
            T = part.joint.transform(state)
            pieces.extend(Piece(T[:3, :3] @ p.center + T[:3, 3], p.half, T[:3, :3] @ p.R) for p in part.pieces)
        return pieces

    def bounds(self, states: Mapping[str, float] | None = None) -> tuple[F64, F64]:
        """Lowest and highest corner (3,), (3,) of the posed geometry in the object frame."""
        corners = self.posed_mesh(states).triangles.reshape(-1, 3)
        return corners.min(0), corners.max(0)

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of the parts that move."""
        return tuple(part.name for part in self.parts if part.joint is not None)


def part_from(builder: MeshBuilder, name: str = "body", joint: Joint | None = None) -> Part:
    """A :class:`Part` from the primitives of ``builder``."""
    return Part(name, builder.build(), tuple(builder.pieces), joint)


@dataclass(frozen=True, eq=False)
class PlacedObject:
    """One instance in a home.

    Attributes:
        id: position in the home's list of objects, from 0; instance images store ``id + 1``.
        model: geometry and words.
        T_world_object: (4, 4) pose of the object frame.
        room: index of the room.
        joint_states: part name -> 0..1.
        support: id of the object below it, or None (floor, wall, ceiling).
        support_relation: "ontop" or "inside" when ``support`` is set.
        mounted: "floor", "wall", "ceiling" or "object".
    """

    id: int
    model: ObjectModel
    T_world_object: F64
    room: int
    joint_states: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    support: int | None = None
    support_relation: str = ""
    mounted: str = "floor"

    @property
    def label(self) -> str:
        """EmbodiedScan category."""
        return self.model.category

    def mesh(self) -> Mesh:
        """Mesh in the world frame."""
        return self.model.posed_mesh(self.joint_states).transformed(self.T_world_object)

    def box9(self) -> F64:
        """Tight (9,) box x y z dx dy dz alpha beta gamma in the world frame, R = Rz(alpha) Rx(beta) Ry(gamma)."""
        T_object_box = self.model.box_frame(self.joint_states)
        corners = self.model.posed_mesh(self.joint_states).triangles.reshape(-1, 3)
        corners = transform_points(invert_transform(T_object_box), corners)
        low, high = corners.min(0), corners.max(0)
        T_world_box = self.T_world_object @ T_object_box
        center = transform_points(T_world_box, (low + high) / 2)
        return np.concatenate([center, high - low, euler_zxy(T_world_box[:3, :3])])

    @property
    def front(self) -> F64:
        """(3,) world direction of its front."""
        direction: F64 = -self.T_world_object[:3, 1]
        return direction


def euler_zxy(R: F64) -> F64:
    """(3, 3) rotation -> (3,) alpha, beta, gamma with R = Rz(alpha) Rx(beta) Ry(gamma)."""
    beta = np.arcsin(np.clip(R[2, 1], -1.0, 1.0))
    if abs(R[2, 1]) > 1 - 1e-9:  # gimbal lock
        return np.array([np.arctan2(R[1, 0], R[0, 0]), beta, 0.0])
    return np.array([np.arctan2(-R[0, 1], R[1, 1]), beta, np.arctan2(-R[2, 0], R[2, 2])])


def pose_at(position_m: F64 | tuple[float, float, float], yaw_rad: float, tilt: F64 | None = None) -> F64:
    """(4, 4) pose from a position, a rotation about z and an optional (3, 3) tilt before it."""
    R = rotation("z", yaw_rad)
    return make_transform(R if tilt is None else R @ tilt, np.asarray(position_m, np.float64))
