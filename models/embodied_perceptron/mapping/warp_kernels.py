# mypy: ignore-errors
"""Kernels of the map on a device, in NVIDIA Warp; :mod:`~embodied_perceptron.mapping.warp_map` launches them.

Each is the twin of a loop of ``host_map.py`` or ``blocks.py``, with the same names, expressions and order of operations
in float64, and without fused multiply-adds, so that both give the same bits. Arrays that all of them share:

* ``keys``, ``count`` (S,): key of the block in a slot, -1 = none, and its number of voxels;
* ``records`` (S * 512, 8) and ``last_seen`` (S * 512,): voxels by slot; see ``voxels.py``;
* ``table_keys``, ``table_slots`` (T,): hash table of block keys, -1 = empty, and the slot of each block, -1 = refused;
* ``free`` (S,): ring of slots without a block; ``counters``: see the constants below.

While a frame is added, the evidence of a voxel holds 256 times the number of its points besides.
"""

import warp as wp

from embodied_perceptron.geometry.transforms import KEY_BITS
from embodied_perceptron.mapping import plane
from embodied_perceptron.mapping.plane import compiled_with
from embodied_perceptron.mapping.voxels import (
    COLOR,
    EVIDENCE,
    EVIDENCE_HIT,
    EVIDENCE_MAX,
    HITS,
    HITS_CAP,
    OFFSET,
    OFFSET_BITS,
)

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # no banner on the standard output
wp.set_module_options({"enable_backward": False, "fuse_fp": False, "fast_math": False})

# columns of the counters of a frame: its counts, then the state of the lists
POINTS, ADDED, TOUCHED, CLEARED, RADIUS, BUDGET, BLOCKS, VOXELS, FREE, TAKEN, WANTED, LISTED = map(
    wp.constant, range(12)
)
COUNTERS = 12
PARTS, EACH = 64, 8  # threads of a block, and voxels of a thread: an argument, so that their loop is not unrolled

_KEY_OFFSET = wp.constant(wp.int64(1 << (KEY_BITS - 1)))
_MASK = wp.constant(wp.int64((1 << KEY_BITS) - 1))
_BITS = wp.constant(wp.int64(KEY_BITS))
_LIMIT = wp.constant(wp.float64(1 << (KEY_BITS - 1 + OFFSET_BITS)))
_NONE = wp.constant(wp.int64(-1))
_MULTIPLIER = wp.constant(wp.uint64(0x9E3779B97F4A7C15))
_PENDING = wp.constant(wp.int32(256))
_HITS, _OFFSET, _COLOR, _EVIDENCE = map(wp.constant, (HITS, OFFSET, COLOR, EVIDENCE))
_HITS_CAP, _EVIDENCE_HIT, _EVIDENCE_MAX = map(wp.constant, (HITS_CAP, EVIDENCE_HIT, EVIDENCE_MAX))

Ints, Longs, Doubles = wp.array(dtype=wp.int32), wp.array(dtype=wp.int64), wp.array(dtype=wp.float64)
Image, Colors = wp.array2d(dtype=wp.float32), wp.array3d(dtype=wp.uint8)
Records, Matrix = wp.array2d(dtype=wp.int32), wp.array2d(dtype=wp.float64)


@wp.func
def coordinate(key: wp.int64, axis: wp.int32):
    return wp.int32(((key >> (_BITS * wp.int64(2 - axis))) & _MASK) - _KEY_OFFSET)


@wp.func
def distance_of(key: wp.int64, center: Doubles):
    """Squared distance of a block from ``center``."""
    half = wp.float64(0.5)
    x = wp.float64(coordinate(key, 0)) + half - center[0]
    y = wp.float64(coordinate(key, 1)) + half - center[1]
    z = wp.float64(coordinate(key, 2)) + half - center[2]
    return (x * x + y * y) + z * z


@wp.func
def beyond(key: wp.int64, center: Doubles, limit: Doubles, limit_key: Longs):
    """Whether a block comes after a limit in the order of (squared distance to ``center``, key)."""
    d = distance_of(key, center)
    return d > limit[0] or (d == limit[0] and key > limit_key[0])


@wp.func
def position(key: wp.int64, shift: wp.int32):
    return wp.int32((wp.uint64(key) * _MULTIPLIER) >> wp.uint64(shift))


@wp.func
def find(table_keys: Longs, shift: wp.int32, key: wp.int64):
    """Place of a key that is in the table."""
    i = position(key, shift)
    while table_keys[i] != key:
        i = (i + 1) & (table_keys.shape[0] - 1)
    return i


@wp.func
def claim(table_keys: Longs, shift: wp.int32, key: wp.int64):
    """Place of a key in the table, which is entered where it is absent; -1 - place for the thread that entered it."""
    i = position(key, shift)
    place = wp.int32(0)
    searching = wp.bool(True)
    while searching:
        old = wp.int64(table_keys[i])
        if old == _NONE:
            old = wp.atomic_cas(table_keys, i, _NONE, key)
            if old == _NONE:
                place = -1 - i
                searching = wp.bool(False)
        if old == key:
            place = i
            searching = wp.bool(False)
        i = (i + 1) & (table_keys.shape[0] - 1)
    return place


@wp.func
def fixed_point(z: wp.float64, axis: wp.int32, v: wp.int32, u: wp.int32, ray_x: Matrix, ray_y: Matrix, origin: Doubles):
    return wp.floor(z * (ray_x[axis, u] + ray_y[axis, v]) + origin[axis])


@wp.func
def in_keys(x: wp.float64):
    return x >= -_LIMIT and x < _LIMIT


@wp.kernel
def touch_blocks(
    depth: Image, ray_x: Matrix, ray_y: Matrix, origin: Doubles, limits: Doubles, first: wp.int32, shift: wp.int32,
    table_keys: Longs, at: Ints, wanted: Ints, counters: Ints,
):  # fmt: skip
    """Enter the block of each point into the table. Out: ``at``, its place by pixel; ``wanted``, places of new ones."""
    row, u = wp.tid()
    v = row + first
    z = wp.float64(depth[v, u])
    at[row * depth.shape[1] + u] = -1
    if not (z >= limits[0] and z <= limits[1]):
        return
    x = fixed_point(z, 0, v, u, ray_x, ray_y, origin)
    y = fixed_point(z, 1, v, u, ray_x, ray_y, origin)
    w = fixed_point(z, 2, v, u, ray_x, ray_y, origin)
    if not (in_keys(x) and in_keys(y) and in_keys(w)):
        return
    bx, by, bz = wp.int64(x) >> wp.int64(13), wp.int64(y) >> wp.int64(13), wp.int64(w) >> wp.int64(13)
    key = ((bx + _KEY_OFFSET) << (_BITS + _BITS)) | ((by + _KEY_OFFSET) << _BITS) | (bz + _KEY_OFFSET)
    place = claim(table_keys, shift, key)
    if place < 0:
        place = -1 - place
        wanted[wp.atomic_add(counters, WANTED, 1)] = place
    at[row * depth.shape[1] + u] = place


@wp.kernel
def list_distances(
    keys: Longs, table_keys: Longs, wanted: Ints, counters: Ints, center: Doubles, limit: Doubles, limit_key: Longs,
    distance: Doubles, candidate: Longs,
):  # fmt: skip
    """Squared distance of stored and wanted blocks, infinite beyond the limit and where there is none."""
    t = wp.tid()
    key = wp.int64(-1)
    if t < keys.shape[0]:
        key = keys[t]
    elif t - keys.shape[0] < counters[WANTED]:
        key = table_keys[wanted[t - keys.shape[0]]]
    candidate[t] = key
    distance[t] = wp.float64(wp.inf)
    if key >= wp.int64(0) and not beyond(key, center, limit, limit_key):
        distance[t] = distance_of(key, center)


@wp.kernel
def erase_blocks(
    keys: Longs, count: Ints, records: Records, last_seen: Longs, center: Doubles, limit: Doubles, limit_key: Longs
):
    """Empty the voxels of blocks beyond the limit."""
    slot, part = wp.tid()
    if keys[slot] < wp.int64(0) or count[slot] == 0:
        return
    if not beyond(keys[slot], center, limit, limit_key):
        return
    for i in range(8):
        row = slot * 512 + part * 8 + i
        last_seen[row] = wp.int64(0)
        for c in range(8):
            records[row, c] = 0


@wp.kernel
def rebuild_table(
    keys: Longs, count: Ints, free: Ints, table_keys: Longs, table_slots: Ints, shift: wp.int32, center: Doubles,
    limit: Doubles, limit_key: Longs, counters: Ints,
):  # fmt: skip
    """Enter the stored blocks into an empty table; the slots of empty blocks and of erased ones become free."""
    slot = wp.tid()
    key = wp.int64(keys[slot])
    if key >= wp.int64(0) and beyond(key, center, limit, limit_key):
        if count[slot] > 0:
            wp.atomic_add(counters, RADIUS, 1)
        count[slot] = 0
    if key < wp.int64(0) or count[slot] == 0:
        keys[slot] = _NONE
        free[wp.atomic_add(counters, FREE, 1)] = slot
        return
    wp.atomic_add(counters, BLOCKS, 1)
    wp.atomic_add(counters, VOXELS, count[slot])
    place = claim(table_keys, shift, key)
    table_slots[-1 - place] = slot


@wp.kernel
def retire_blocks(
    keys: Longs, count: Ints, free: Ints, table_keys: Longs, table_slots: Ints, shift: wp.int32, center: Doubles,
    limit: Doubles, limit_key: Longs, counters: Ints,
):  # fmt: skip
    """Free the slots of erased blocks, beyond the limit, and refuse these blocks for this frame."""
    slot = wp.tid()
    key = wp.int64(keys[slot])
    if key < wp.int64(0):
        return
    if not beyond(key, center, limit, limit_key):
        return
    table_slots[find(table_keys, shift, key)] = -1
    wp.atomic_add(counters, BUDGET, 1)
    wp.atomic_add(counters, BLOCKS, -1)
    wp.atomic_add(counters, VOXELS, -count[slot])
    keys[slot] = _NONE
    count[slot] = 0
    free[wp.atomic_add(counters, FREE, 1) % keys.shape[0]] = slot


@wp.kernel
def allocate_blocks(
    keys: Longs, free: Ints, table_keys: Longs, table_slots: Ints, wanted: Ints, center: Doubles, limit: Doubles,
    limit_key: Longs, counters: Ints,
):  # fmt: skip
    """Give a slot to each new block that is not beyond the limit."""
    t = wp.tid()
    if t >= counters[WANTED]:
        return
    key = table_keys[wanted[t]]
    if beyond(key, center, limit, limit_key):
        table_slots[wanted[t]] = -1
        return
    slot = free[wp.atomic_add(counters, TAKEN, 1) % keys.shape[0]]
    keys[slot] = key
    table_slots[wanted[t]] = slot
    wp.atomic_add(counters, BLOCKS, 1)


@wp.kernel
def accumulate(
    depth: Image, color: Colors, ray_x: Matrix, ray_y: Matrix, origin: Doubles, limits: Doubles, first: wp.int32,
    at: Ints, table_slots: Ints, records: Records, listed: Ints, counters: Ints,
):  # fmt: skip
    """Add the points to their voxels; ``listed`` out: rows of the voxels."""
    line, u = wp.tid()
    v = line + first
    z = wp.float64(depth[v, u])
    if not (z >= limits[0] and z <= limits[1]):
        return
    wp.atomic_add(counters, POINTS, 1)
    place = at[line * depth.shape[1] + u]
    if place < 0:
        return
    slot = table_slots[place]
    if slot < 0:
        return
    wp.atomic_add(counters, ADDED, 1)
    x = wp.int32(fixed_point(z, 0, v, u, ray_x, ray_y, origin))
    y = wp.int32(fixed_point(z, 1, v, u, ray_x, ray_y, origin))
    w = wp.int32(fixed_point(z, 2, v, u, ray_x, ray_y, origin))
    row = slot * 512 + (((x >> 10) & 7) << 6) + (((y >> 10) & 7) << 3) + ((w >> 10) & 7)
    wp.atomic_add(records, row, _HITS, 1)
    wp.atomic_add(records, row, _OFFSET, x & 1023)
    wp.atomic_add(records, row, _OFFSET + 1, y & 1023)
    wp.atomic_add(records, row, _OFFSET + 2, w & 1023)
    for c in range(3):
        wp.atomic_add(records, row, _COLOR + c, wp.int32(color[v, u, c]))
    if wp.atomic_add(records, row, _EVIDENCE, _PENDING) < _PENDING:
        listed[wp.atomic_add(counters, LISTED, 1)] = row


@wp.kernel
def merge(
    listed: Ints, stamp: Longs, first_band: wp.bool, records: Records, last_seen: Longs, count: Ints, counters: Ints
):
    """Finish the voxels that got points: halve full ones, and raise the evidence once a frame."""
    t = wp.tid()
    if t >= counters[LISTED]:
        return
    row = listed[t]
    points = records[row, _EVIDENCE] / _PENDING
    evidence = records[row, _EVIDENCE] % _PENDING
    hits = wp.int32(records[row, _HITS])
    if hits == points:
        wp.atomic_add(count, row / 512, 1)
        wp.atomic_add(counters, VOXELS, 1)
    if first_band or hits == points or last_seen[row] != stamp[0]:
        wp.atomic_add(counters, TOUCHED, 1)
        evidence = wp.min(evidence + _EVIDENCE_HIT, _EVIDENCE_MAX)
    while hits > _HITS_CAP:
        hits = hits >> 1
        for c in range(7):
            records[row, c] = records[row, c] >> 1
    records[row, _EVIDENCE] = evidence
    last_seen[row] = wp.max(last_seen[row], stamp[0])


_PLANE = Image, *[wp.int32] * 3, *[wp.float64] * 4, Doubles, Matrix, Doubles
before_plane = wp.func(
    compiled_with(plane.before_plane, __name__, _PLANE, real=wp.float64, whole=wp.int32, root=wp.sqrt)
)


@wp.func
def evidence_lost(
    image: Image, i: wp.int32, j: wp.int32, r: wp.int32, row: wp.float64, column: wp.float64, z: wp.float64,
    limit: wp.float64, k: Doubles, T: Matrix, margins: Doubles, steps: Ints,
):  # fmt: skip
    """Loss of evidence of a voxel before its pixel (i, j): of ``steps``, by the number of unknown pixels around."""
    near, unknown = wp.float32(wp.inf), wp.int32(0)
    for dv in range(-r, r + 1):
        for du in range(-r, r + 1):
            depth = image[i + dv, j + du]
            if depth == wp.float32(0.0):
                unknown += 1
            else:
                near = wp.min(near, depth)
    if steps[unknown] == 0:
        return wp.int32(0)
    if wp.float64(near) > limit or before_plane(image, i, j, r, row, column, z, limit, k, T, margins):
        return steps[unknown]
    return wp.int32(0)


@wp.kernel
def clear_blocks(
    keys: Longs, local_camera: Matrix, edge_m: wp.float64, sphere_m: wp.float64, T: Matrix, k: Doubles, limits: Doubles,
    margins: Doubles, planes: Matrix, image: Image, steps: Ints, r: wp.int32, each: wp.int32, stamp: Longs,
    records: Records, last_seen: Longs, count: Ints, counters: Ints,
):  # fmt: skip
    """Lower the evidence of voxels that the view sees through; see ``host_map.clear_blocks``."""
    slot, part = wp.tid()
    if count[slot] == 0:
        return
    key = keys[slot]
    ox = wp.float64(coordinate(key, 0)) * edge_m
    oy = wp.float64(coordinate(key, 1)) * edge_m
    oz = wp.float64(coordinate(key, 2)) * edge_m
    bx = ((T[0, 0] * ox + T[0, 1] * oy) + T[0, 2] * oz) + T[0, 3]
    by = ((T[1, 0] * ox + T[1, 1] * oy) + T[1, 2] * oz) + T[1, 3]
    bz = ((T[2, 0] * ox + T[2, 1] * oy) + T[2, 2] * oz) + T[2, 3]
    # a sphere around the block's corner holds the block; a block outside of the frustum has nothing to clear
    if bz + sphere_m < limits[0] or bz - sphere_m > limits[1]:
        return
    for side in range(2):
        if planes[side, 0] * bx + planes[side, 1] * bz < -sphere_m:
            return
        if planes[side + 2, 0] * by + planes[side + 2, 1] * bz < -sphere_m:
            return
    height, width = image.shape[0], image.shape[1]
    half = wp.float64(0.5)
    for i in range(each):
        local = part * each + i
        at = slot * 512 + local
        z = bz + local_camera[local, 2]
        if records[at, _HITS] > 0 and z >= limits[0] and z <= limits[1] and last_seen[at] != stamp[0]:
            inverse = wp.float64(1.0) / z
            column = ((bx + local_camera[local, 0]) * inverse) * k[0] + k[2]
            row = ((by + local_camera[local, 1]) * inverse) * k[1] + k[3]
            u, v = wp.floor(column + half), wp.floor(row + half)
            low = wp.float64(r)
            if u >= low and u < wp.float64(width - r) and v >= low and v < wp.float64(height - r):
                limit = z + (limits[2] + limits[3] * (z * z))
                y, x = wp.int32(v), wp.int32(u)
                if wp.float64(image[y, x]) > limit:
                    step = evidence_lost(image, y, x, r, row, column, z, limit, k, T, margins, steps)
                    records[at, _EVIDENCE] = records[at, _EVIDENCE] - step
                    if records[at, _EVIDENCE] < 0:
                        for c in range(8):
                            records[at, c] = 0
                        last_seen[at] = wp.int64(0)
                        wp.atomic_add(count, slot, -1)
                        wp.atomic_add(counters, CLEARED, 1)
                        wp.atomic_add(counters, VOXELS, -1)


@wp.kernel
def list_voxels(
    keys: Longs, chosen: wp.array(dtype=wp.bool), records: Records, min_hits: wp.int32, each: wp.int32, listed: Longs,
    place: Ints, packed: Records,
):  # fmt: skip
    """List the voxels of the chosen slots that have ``min_hits``: their keys and rows, as far as there is room, and
    their number, in the last row of ``packed``."""
    slot, part = wp.tid()
    if not chosen[slot]:
        return
    for i in range(each):
        local = part * each + i
        if records[slot * 512 + local, _HITS] >= min_hits:
            at = wp.atomic_add(packed, packed.shape[0] - 1, 0, 1)
            if at < listed.shape[0]:
                place[at] = slot * 512 + local
                x = wp.int64(coordinate(keys[slot], 0) * 8 + (local >> 6)) + _KEY_OFFSET
                y = wp.int64(coordinate(keys[slot], 1) * 8 + ((local >> 3) & 7)) + _KEY_OFFSET
                z = wp.int64(coordinate(keys[slot], 2) * 8 + (local & 7)) + _KEY_OFFSET
                listed[at] = (x << (_BITS + _BITS)) | (y << _BITS) | z


@wp.kernel
def pack_voxels(listed: Longs, order: Longs, place: Ints, records: Records, last_seen: Longs, packed: Records):
    """Write the listed voxels, whose keys are sorted, for ``VoxelRows.of_packed``."""
    t = wp.tid()
    if t >= packed[packed.shape[0] - 1, 0]:
        return
    row = place[wp.int32(order[t])]
    packed[t, 0] = wp.int32(last_seen[row])
    packed[t, 1] = wp.int32(last_seen[row] >> wp.int64(32))
    for axis in range(3):
        packed[t, 2 + axis] = coordinate(listed[t], axis)
    for c in range(8):
        packed[t, 5 + c] = records[row, c]
