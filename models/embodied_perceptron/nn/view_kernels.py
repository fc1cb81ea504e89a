# mypy: ignore-errors
"""Kernel of view sampling on a device, in NVIDIA Warp; :mod:`~embodied_perceptron.nn.view_fusion` launches it.

Its float64 expressions are those of ``view_fusion.py``, in the same order and without fused multiply-adds, so that both
select the same cells.
"""

import warp as wp

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # no banner on the standard output
wp.init()
wp.set_module_options({"enable_backward": False, "fuse_fp": False, "fast_math": False})

Matrix, Volume, Images = wp.array2d(dtype=wp.float64), wp.array3d(dtype=wp.float64), wp.array3d(dtype=wp.float32)


@wp.kernel
def find_cells(
    points: Matrix, levels: Matrix, projections: Volume, depth_m: Images, margin_m: wp.float64, near_m: wp.float64,
    image_w: wp.float64, image_h: wp.float64, index: wp.array2d(dtype=wp.int64), seen: wp.array(dtype=wp.int32),
):  # fmt: skip
    """Find the cell of each view's image features at each point: its row in the table of the point's level, or the row
    of zeros where the view does not see the point.

    ``points`` (N, 3); ``levels`` per level: end of its points, cells per pixel (x, y), columns, rows, row of zeros,
    half the diagonal of a voxel; ``projections`` (3, 4, V); ``depth_m`` (V, H, W), tested where ``margin_m`` is not
    negative. Out: ``index`` (N, V); ``seen`` (N,), raised by the number of views.
    """
    n, v = wp.tid()
    level = wp.int32(0)
    while wp.float64(n) >= levels[level, 0]:
        level += 1
    x, y, z, half = points[n, 0], points[n, 1], points[n, 2], wp.float64(0.5)
    index[n, v] = wp.int64(levels[level, 5])
    a = ((x * projections[0, 0, v] + y * projections[0, 1, v]) + z * projections[0, 2, v]) + projections[0, 3, v]
    b = ((x * projections[1, 0, v] + y * projections[1, 1, v]) + z * projections[1, 2, v]) + projections[1, 3, v]
    depth = ((x * projections[2, 0, v] + y * projections[2, 1, v]) + z * projections[2, 2, v]) + projections[2, 3, v]
    if not depth > near_m:
        return
    right, down = a / depth, b / depth
    if not (right >= -half and right < image_w - half and down >= -half and down < image_h - half):
        return
    right, down = right + half, down + half
    if margin_m >= wp.float64(0.0):
        height, width = wp.float64(depth_m.shape[1]), wp.float64(depth_m.shape[2])
        row = wp.clamp(wp.floor(down * (height / image_h)), wp.float64(0.0), height - wp.float64(1.0))
        column = wp.clamp(wp.floor(right * (width / image_w)), wp.float64(0.0), width - wp.float64(1.0))
        measured = wp.float64(depth_m[v, wp.int32(row), wp.int32(column)])
        if measured > wp.float64(0.0) and depth > measured + (margin_m + levels[level, 6]):
            return
    row = wp.min(wp.floor(down * levels[level, 2]), levels[level, 4] - wp.float64(1.0))
    column = wp.min(wp.floor(right * levels[level, 1]), levels[level, 3] - wp.float64(1.0))
    area = levels[level, 3] * levels[level, 4]
    index[n, v] = wp.int64((wp.float64(v) * area + row * levels[level, 3]) + column)
    wp.atomic_add(seen, n, 1)
