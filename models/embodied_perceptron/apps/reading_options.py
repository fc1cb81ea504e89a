"""Options and loaders that commands share: recordings, saved maps, the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embodied_perceptron.apps.command_line import CommandError, in_file

if TYPE_CHECKING:
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.recording import Recording, TransformSample

MAP_NAME = "map.safetensors"  # in a folder of results


@dataclass(frozen=True)
class ReadingOptions:
    """Conventions of a recording, as options of a command."""

    tf_topic: Annotated[
        str | None, typer.Option(help="Topic of the transforms of a bag, where each of several robots has its own.")
    ] = None
    poses: Annotated[
        str | None,
        typer.Option(
            help="Convention of the poses, where it is not the one of ROS: opengl, body, inverse, wxyz, yup, ydown, "
            "arkit; several separated by commas."
        ),
    ] = None
    pose_scale: Annotated[float | None, typer.Option(help="Metres in one unit of the poses.")] = None
    pose_offset: Annotated[
        float | None, typer.Option(help="Seconds to add to the stamps of the poses, -0.05 for example.")
    ] = None
    depth_scale: Annotated[
        float | None, typer.Option(help="Units of the depth images in one metre, 5000 for example.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the given options as arguments of :func:`~embodied_perceptron.recordings.open.open_recording`."""
        values = {field.name: getattr(self, field.name) for field in fields(ReadingOptions)}
        return {name: value for name, value in values.items() if value is not None}

    def open(self, source: Path, **options: Any) -> Recording:
        """Open a recording; ``options`` go to :func:`~embodied_perceptron.recordings.open.open_recording`."""
        from embodied_perceptron.recordings.open import open_recording

        return open_recording(source, **self.given(), **options)


@dataclass(frozen=True)
class SourceOptions(ReadingOptions):
    """Also what a bag lacks, and the topics and frames to use."""

    intrinsics: Annotated[
        str | None,
        typer.Option(
            metavar="FX,FY,CX,CY[,W,H]",
            help="Intrinsics in pixels, for a bag with one camera and no camera_info; images must be undistorted.",
        ),
    ] = None
    static_tf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARENT,CHILD,X,Y,Z,QX,QY,QZ,QW",
            help="A transform missing in a bag: the pose of CHILD in PARENT, metres; repeatable.",
        ),
    ] = None
    world_frame: Annotated[str | None, typer.Option(help="Frame of the map; by default the recording's own.")] = None
    color_topic: Annotated[str | None, typer.Option(help="Colour topic: of a bag, where it cannot be detected.")] = None
    depth_topic: Annotated[str | None, typer.Option(help="Depth topic: of a bag.")] = None
    info_topic: Annotated[str | None, typer.Option(help="camera_info topic of a bag.")] = None

    def given(self) -> dict[str, Any]:
        """As above, without frame and topics. Raises ``CommandError`` with malformed intrinsics or transforms."""
        found = super().given()
        if self.intrinsics is not None:
            found["intrinsics"] = parse_intrinsics(self.intrinsics)
        if self.static_tf:
            found["static_tf"] = [parse_static_tf(text) for text in self.static_tf]
        return found

    def open(self, source: Path, **options: Any) -> Recording:
        """As above. Raises ``CommandError`` for topics of which some are missing."""
        from embodied_perceptron.recordings.bag import CameraTopics

        if self.world_frame is not None:
            options["world_frame"] = self.world_frame
        color, depth, info = self.color_topic, self.depth_topic, self.info_topic
        if color or depth or info:
            if color is None or depth is None or (info is None and self.intrinsics is None):
                raise CommandError("--color-topic, --depth-topic and --info-topic (or --intrinsics) belong together")
            options["cameras"] = [CameraTopics("camera", color, depth, info or "")]
        return super().open(source, **options)


DetectionsOption = Annotated[
    Path | None,
    in_file(
        "--detections",
        help="COCO file of 2-D detections (boxes, scores, names, masks): lifted into the map in place of a detector's.",
    ),
]


def parse_intrinsics(text: str) -> tuple[float, ...]:
    """Parse ``fx,fy,cx,cy`` or ``fx,fy,cx,cy,width,height``. Raises ``CommandError`` with the text."""
    values = _numbers(text.split(","))
    if len(values) not in (4, 6):
        raise CommandError(f"--intrinsics must be fx,fy,cx,cy or fx,fy,cx,cy,width,height in pixels, got {text!r:.200}")
    return values


def parse_static_tf(text: str) -> TransformSample:
    """Parse ``parent,child,x,y,z,qx,qy,qz,qw``. Raises ``CommandError`` with the text."""
    import numpy as np

    from embodied_perceptron.geometry.transforms import transform_from_pose
    from embodied_perceptron.recordings.recording import TransformSample
    from embodied_perceptron.sensors.poses import frame_name

    parts = [part.strip() for part in text.split(",")]
    values = np.array(_numbers(parts[2:]))
    if len(values) != 7:
        raise CommandError(f"--static-tf must be parent,child,x,y,z,qx,qy,qz,qw, got {text!r:.200}")
    try:
        T = transform_from_pose(values[:3], values[3:])
        return TransformSample(0, frame_name(parts[0]), frame_name(parts[1]), T, is_static=True)
    except ValueError as error:
        raise CommandError(f"--static-tf {text!r:.200}: {error}") from error


def _numbers(words: Sequence[str]) -> tuple[float, ...]:
    """Parse numbers; empty when a word is not a number."""
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        return ()


# --------------------------------------------------------------------------------------------------------------------
# saved maps and the configuration


def map_file(path: Path) -> Path:
    """Return the map file at a path or in a folder. Raises ``CommandError`` where there is none."""
    file = path / MAP_NAME if path.is_dir() else path
    if not file.is_file():
        raise CommandError(f"no map at {file}")
    return file


def open_map(path: Path, config: Path | None = None) -> Perceptron:
    """Load a saved map (a file, or a folder with one) with its configuration, objects and names, without a network.

    ``config``: file whose section ``language`` says how sentences are read. Raises ``CommandError`` where there is no
    map, ``MapFileError`` for a damaged one, ``ConfigError`` for an invalid configuration.
    """
    file = map_file(path)
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.mapping.storage import read_map, saved_configs
    from embodied_perceptron.perceptron import Perceptron

    saved = read_map(file)
    volume, keyframes = saved_configs(saved)
    language = load_settings(config).language
    perceptron = Perceptron(PerceptronConfig(volume=volume, keyframes=keyframes, language=language))
    perceptron.map.restore(saved)
    return perceptron


def load_settings(path: Path | None) -> PerceptronConfig:
    """Load a configuration file; without one, the defaults."""
    from embodied_perceptron.config import PerceptronConfig, load_config

    return PerceptronConfig() if path is None else load_config(path)


def with_network(settings: PerceptronConfig, weights: str | None, device: str | None) -> PerceptronConfig:
    """Apply the network and device of the command line to the configuration. Raises ``WeightsError``."""
    from dataclasses import replace

    from embodied_perceptron.weights import weights_file

    network = settings.network
    if weights is not None:
        network = replace(network, weights=weights)
        if network.weights:
            weights_file(network.weights)
    if device is not None:
        network = replace(network, device=device)
    return replace(settings, network=network)


def with_detectors(
    settings: PerceptronConfig,
    detectors: Sequence[Path] | None,
    layouts: Sequence[str] | None,
    detections: Path | None = None,
) -> PerceptronConfig:
    """Apply the detectors of the command line to the configuration.

    Raises ``CommandError`` for missing files, and files without layouts; ``ConfigError`` for an unknown layout.
    """
    from dataclasses import replace

    from embodied_perceptron.config import COCO_LAYOUT, LiftOptions, config_from_dict, config_to_dict

    if detections is not None:
        if detectors:
            raise CommandError("--detections stands in place of --detector: give one of them")
        detectors, layouts = [detections], [COCO_LAYOUT]
    files, layouts = list(detectors or ()), list(layouts or ())
    if layouts and len(files) != len(layouts):
        raise CommandError(
            f"--detector-layout is needed for no file or for each: {len(layouts)} layouts for {len(files)} files"
        )
    layouts = layouts or [""] * len(files)
    if missing := [str(file) for file in files if not file.is_file()]:
        raise CommandError(f"no detector file at {', '.join(missing)}")
    if not files:
        return settings
    wanted = config_to_dict(settings.lift) | {"detector": str(files[0]), "layout": layouts[0], "from_topics": False}
    entries = [f"{layout}:{file}" if layout else str(file) for layout, file in zip(layouts, files, strict=True)]
    wanted["also"] = entries[1:]
    return replace(settings, lift=config_from_dict(LiftOptions, wanted, "lift"))
