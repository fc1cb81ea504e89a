"""Parameters: what is declared, read and refused. The nodes live in the test's process and are not spun."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy")
pytest.importorskip("rcl_interfaces")

import rclpy
from rclpy.context import Context
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from support.ros_live import own_domain

from embodied_perceptron.config import ConfigError
from embodied_perceptron_ros.node import parameters as parameters_module
from embodied_perceptron_ros.node.parameters import (
    DECLARATIONS,
    ParameterError,
    ReadBack,
    apply_change,
    check_change,
    declare_parameters,
    effective_values,
    read_parameters,
    unknown_parameters,
    unused_overrides,
)
from embodied_perceptron_ros.players.launch_options import DEFAULT_CONFIG, check_config

pytestmark = pytest.mark.ros


@pytest.fixture(scope="module")
def context():
    context = Context()
    with own_domain() as domain:
        rclpy.init(context=context, domain_id=domain)
        yield context
        rclpy.shutdown(context=context)


@pytest.fixture
def make(context):
    nodes: list[Node] = []

    def build(**overrides) -> Node:
        values = [Parameter(name.replace("__", "."), value=value) for name, value in overrides.items()]
        nodes.append(Node("perception", context=context, parameter_overrides=values))
        declare_parameters(nodes[-1])
        return nodes[-1]

    yield build
    for node in nodes:
        node.destroy_node()


def test_defaults(make):
    parameters = read_parameters(make())
    assert parameters.fusion_frame == parameters.output_frame == "odom"
    assert parameters.config.volume.voxel_size_m == 0.02
    assert parameters.config.volume.max_range_m == 5.0
    camera = parameters.cameras[0]
    assert camera.subscriptions == {
        "color": (Image, "color/image_raw"),
        "depth": (Image, "depth/image_raw"),
        "info": (CameraInfo, "color/camera_info"),
    }


def test_network_parameters_stand_over_the_configuration(make, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("network: {weights: mine.safetensors, device: auto, window_m: 4.8}")
    network = read_parameters(make(config_file=str(config))).config.network
    assert (network.weights, network.device, network.window_m) == ("mine.safetensors", "auto", 4.8)
    network = read_parameters(make(config_file=str(config), weights="tiny", device="cpu", window_m=3.2)).config.network
    assert (network.weights, network.device, network.window_m) == ("tiny", "cpu", 3.2)
    assert read_parameters(make(config_file=str(config), weights="none")).config.network.weights == ""
    assert read_parameters(make()).config.network.weights == "tiny"


def test_the_only_reader_of_sentences_is_learned(make, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("language: {reader: grammar}")
    parameters = read_parameters(make(sentence_reader="learned"))
    assert parameters.config.language.reader == effective_values(parameters)["sentence_reader"] == "learned"
    with pytest.raises(ValueError, match="reader grammar was removed: delete the setting"):
        read_parameters(make(config_file=str(config)))
    with pytest.raises(ValueError, match="sentence_reader must be one of learned"):
        read_parameters(make(sentence_reader="grammar"))


def test_a_language_model_reads_where_file_or_parameters_say_so(make, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "language: {reader: endpoint, endpoint: 'https://a/v1', model: big, api_key_variable: KEY, limit_s: 2.0}"
    )
    language = read_parameters(make(config_file=str(config))).config.language
    assert (language.endpoint, language.model, language.api_key_variable) == ("https://a/v1", "big", "KEY")
    # the file's key does not go to an endpoint that a parameter names
    language = read_parameters(make(config_file=str(config), sentence_endpoint="http://b/v1")).config.language
    assert (language.endpoint, language.model, language.api_key_variable) == ("http://b/v1", "big", "")
    assert read_parameters(make(config_file=str(config), sentence_reader="learned")).config.language.reader == "learned"
    parameters = make(sentence_reader="endpoint", sentence_endpoint="http://b/v1", sentence_model="m")
    assert read_parameters(parameters).config.language.reader == "endpoint"
    with pytest.raises(ValueError, match="endpoint must be a URL"):
        read_parameters(make(sentence_reader="endpoint"))


def test_the_folder_of_places_left_behind_stands_over_the_configuration(make, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("spill: {folder: /from/file, max_gib: 2.0}")
    assert read_parameters(make()).config.spill.folder == ""
    assert read_parameters(make(config_file=str(config))).config.spill.folder == "/from/file"
    parameters = read_parameters(make(config_file=str(config), spill_folder=str(tmp_path)))
    assert (parameters.config.spill.folder, parameters.config.spill.max_gib) == (str(tmp_path), 2.0)
    assert effective_values(parameters)["spill_folder"] == str(tmp_path)


def test_a_topic_of_detections_turns_the_lift_on(make, tmp_path):
    assert not read_parameters(make()).config.lift.enabled
    parameters = read_parameters(make(camera__detections_topic="/yolo/detections", detections_tolerance_s=0.02))
    assert parameters.config.lift.from_topics
    assert parameters.config.lift.stamp_tolerance_s == 0.02
    assert parameters.config.lift.persons == "masked"
    assert read_parameters(make(persons="mapped")).config.lift.persons == "mapped"
    assert parameters.cameras[0].detections_topic == "/yolo/detections"
    config = tmp_path / "config.yaml"
    config.write_text("lift: {from_topics: true}")
    parameters = read_parameters(make(config_file=str(config), cameras=["front", "rear"]))
    assert [c.detections_topic for c in parameters.cameras] == ["front/detections", "rear/detections"]
    config.write_text("lift: {detector: a.onnx, layout: yolox}")
    with pytest.raises(ValueError, match="detector and from_topics exclude each other"):
        read_parameters(make(config_file=str(config), camera__detections_topic="/yolo/detections"))


@pytest.mark.parametrize("configured", ["mine.safetensors", ""])
def test_empty_weights_are_no_network_in_the_file_and_as_a_parameter(make, tmp_path, configured):
    config = tmp_path / "config.yaml"
    config.write_text(f'network: {{weights: "{configured}"}}')
    for said in ({}, {"weights": "config"}):
        assert read_parameters(make(config_file=str(config), **said)).config.network.weights == configured
    assert read_parameters(make(config_file=str(config), weights="")).config.network.weights == ""


def test_a_class_list_is_a_file_or_names_between_commas(make, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("# mine\nchair\ndining table\n", "utf-8")
    config = tmp_path / "config.yaml"
    config.write_text("network: {classes: [bed]}")
    assert read_parameters(make()).config.network.classes == ()
    assert read_parameters(make(config_file=str(config))).config.network.classes == ("bed",)
    assert read_parameters(make(classes=str(names))).config.network.classes == ("chair", "dining table")
    read = read_parameters(make(config_file=str(config), classes="sofa, lamp"))
    assert read.config.network.classes == ("sofa", "lamp")
    for bad, message in (("sofa,,lamp", "classes: class 2 of 3 is empty"), ("none.txt", "classes: no file")):
        with pytest.raises(ValueError, match=message):
            read_parameters(make(classes=bad))


def test_the_viewer_is_one_that_exists(make):
    with pytest.raises(ValueError, match="viewer must be one of"):
        read_parameters(make(viewer="holodeck"))
    assert read_parameters(make(viewer="rerun", viewer_file="/tmp/a.rrd")).viewer == "rerun"


def test_several_cameras_have_their_names_in_front(make):
    parameters = read_parameters(make(cameras=["front", "rear"], rear__color_topic="/elsewhere/image"))
    front, rear = parameters.cameras
    assert front.color_topic == "front/color/image_raw"
    assert rear.color_topic == "/elsewhere/image"
    assert rear.depth_topic == "rear/depth/image_raw"


def test_transports_change_the_topic_as_image_transport_does(make):
    node = make(camera__color_transport="compressed", camera__depth_transport="compressedDepth")
    camera = read_parameters(node).cameras[0]
    assert camera.subscriptions["color"] == (CompressedImage, "color/image_raw/compressed")
    assert camera.subscriptions["depth"] == (CompressedImage, "depth/image_raw/compressedDepth")


def test_numbers_override_the_configuration_file(make, tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text("volume: {voxel_size_m: 0.04, radius_m: 8.0}\nassembler: {max_pose_wait_s: 1.5}\n", "utf-8")
    config = read_parameters(make(config_file=str(path), voxel_size_m=0.1)).config
    assert config.volume.voxel_size_m == 0.1
    assert config.volume.radius_m == 8.0
    assert config.assembler.max_pose_wait_s == 1.5


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"cameras": ["two words"]}, "two words"),
        ({"cameras": ["autostart"]}, "autostart"),
        ({"cameras": ["a", "a"]}, "differ"),
        ({"fusion_frame": ""}, "fusion_frame"),
        ({"output_frame": "a b"}, "output_frame"),
        ({"on_time_jump": "panic"}, "keep, reset"),
        ({"camera__depth_transport": "pigeon"}, "camera.depth_transport"),
        ({"max_range_m": 50.0}, "radius_m"),
    ],
)
def test_bad_values_are_refused_by_name(make, overrides, match):
    node = make(**overrides)
    with pytest.raises(ValueError, match=match):
        read_parameters(node)


def test_unreadable_configuration_is_refused_by_name(make, tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text("volume: {voxel_sise_m: 0.04}\n", "utf-8")
    with pytest.raises(ConfigError, match="voxel_sise_m"):
        read_parameters(make(config_file=str(path)))
    with pytest.raises(FileNotFoundError, match="absent"):
        read_parameters(make(config_file=str(tmp_path / "absent.yaml")))


def test_ranges_and_types_are_declared(make):
    with pytest.raises(InvalidParameterValueException, match="perception_hz"):
        make(perception_hz=1e3)
    with pytest.raises(InvalidParameterTypeException, match="max_backlog"):
        make(max_backlog="many")


def test_every_parameter_is_described(make):
    node = make()
    for name, declaration in DECLARATIONS.items():
        descriptor = node.describe_parameter(name)
        assert len(descriptor.description) > 10
        if isinstance(declaration.default, (int, float)) and not isinstance(declaration.default, bool):
            assert descriptor.floating_point_range or descriptor.integer_range, name


def test_changes_while_running(make):
    current = read_parameters(make())
    change = [Parameter("perception_hz", value=7.0), Parameter("output_frame", value="map")]
    assert check_change(change, configured=True).successful
    changed = apply_change(current, change)
    assert (changed.perception_hz, changed.output_frame) == (7.0, "map")
    assert apply_change(changed, [Parameter("output_frame", value="")]).output_frame == "odom"


@pytest.mark.parametrize("name", ["fusion_frame", "voxel_size_m", "config_file", "camera.info_topic"])
def test_what_configuration_fixed_changes_only_before_it(name):
    value = 0.1 if name == "voxel_size_m" else "x"
    assert not check_change([Parameter(name, value=value)], configured=True).successful
    assert check_change([Parameter(name, value=value)], configured=False).successful


def test_a_node_without_cameras_is_refused():
    result = check_change([Parameter("cameras", Parameter.Type.STRING_ARRAY, [])], configured=False)
    assert "at least one" in result.reason


def test_foreign_parameters_are_none_of_our_business():
    assert check_change([Parameter("use_sim_time", value=True)], configured=True).successful
    qos = Parameter("qos_overrides./tf.subscription.depth", value=5)
    assert check_change([qos], configured=True).successful


# ------------------------------------------------------------------------------------------------ names, types, values


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"voxel_sise_m": 0.03}, "unknown parameter 'voxel_sise_m': did you mean 'voxel_size_m'?"),
        ({"camera__colour_topic": "/rgb"}, "did you mean 'camera.color_topic'?"),
        ({"front__color_topic": "/rgb"}, "there is no camera 'front', cameras are camera"),
        ({"qos_overrides__/tf__subscription__relability": "reliable"}, "qos_overrides"),
        ({"zzz": 1}, "unknown parameter 'zzz'"),
    ],
)
def test_unknown_parameters_are_refused_by_name(make, overrides, words):
    with pytest.raises(ParameterError) as caught:
        make(**overrides)
    assert words in str(caught.value)


def test_parameters_that_are_known_though_not_ours_pass(make):
    make(
        use_sim_time=True,
        cameras=["front"],
        front__color_topic="/rgb",
        camera__color_topic="/as/in/the/shipped/file",
        **{"qos_overrides__/color/image_raw__subscription__reliability": "reliable"},
    )


def test_qos_overrides_that_nobody_asks_for_are_found(make):
    name = "qos_overrides./color/image_raw.subscription.reliability"
    node = make(**{name.replace(".", "__"): "reliable", "qos_overrides__/colour__subscription__depth": 5})
    options = QoSOverridingOptions.with_default_policies()
    node.create_subscription(Image, "/color/image_raw", print, 1, qos_overriding_options=options)
    assert unused_overrides(node) == ["qos_overrides./colour.subscription.depth"]


def test_every_key_of_the_shipped_file_is_known():
    shipped = yaml.safe_load((Path(parameters_module.__file__).parents[1] / "config/perception.yaml").read_text())
    (section,) = shipped.values()
    flat = []
    for name, value in section["ros__parameters"].items():
        flat += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    assert len(flat) > 15
    assert unknown_parameters(flat, section["ros__parameters"]["cameras"]) == []


def test_the_shipped_file_says_the_defaults():
    """The launch files do not pass it."""
    camera = {"camera." + name: d.default for name, d in parameters_module.CAMERA_DECLARATIONS.items()}
    topics = {"camera." + name: topic for name, topic in parameters_module.default_topics("camera", True).items()}
    defaults = {name: d.default for name, d in parameters_module.DECLARATIONS.items()} | camera | topics
    shipped = check_config(DEFAULT_CONFIG)
    assert {name: value for name, value in shipped.items() if defaults[name] != value} == {}


def test_integers_serve_for_doubles(make):
    node = make(max_range_m=5, perception_hz=2)
    assert read_parameters(node).config.volume.max_range_m == 5.0
    assert node.get_parameter("perception_hz").value == 2.0
    assert isinstance(node.get_parameter("max_range_m").value, float)
    result = node.set_parameters([Parameter("perception_hz", value=4)])[0]
    assert result.successful, result.reason
    assert node.get_parameter("perception_hz").value == 4.0
    assert not node.set_parameters([Parameter("max_backlog", value=2.5)])[0].successful  # not the other way round
    with pytest.raises(InvalidParameterTypeException, match="max_range_m"):
        make(max_range_m="5")
    with pytest.raises(InvalidParameterValueException, match="max_range_m"):
        make(max_range_m=500)


def test_values_in_use_can_be_read_and_what_was_given_comes_back(make, tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text("volume: {voxel_size_m: 0.04}\nnetwork: {weights: tiny}\n", "utf-8")
    node = make(config_file=str(path), max_range_m=3.0)
    shown = ReadBack(node)
    shown.show(effective_values(read_parameters(node)))
    read = {n: node.get_parameter(n).value for n in ("voxel_size_m", "max_range_m", "weights", "output_frame")}
    assert read == {"voxel_size_m": 0.04, "max_range_m": 3.0, "weights": "tiny", "output_frame": "odom"}
    assert node.get_parameter("camera.depth_topic").value == "depth/image_raw"
    assert node.get_parameter("max_obstacle_height_m").value == 1.8
    again = read_parameters(node)
    assert (again.config.volume.voxel_size_m, again.cameras[0].depth_topic) == (0.04, "depth/image_raw")
    change = [Parameter("output_frame", value="map")]
    node.set_parameters(change)
    shown.changed(change)
    shown.restore()
    read = {n: node.get_parameter(n).value for n in ("voxel_size_m", "max_range_m", "weights", "output_frame")}
    assert read == {"voxel_size_m": 0.0, "max_range_m": 3.0, "weights": "config", "output_frame": "map"}
    assert node.get_parameter("camera.depth_topic").value == ""


def test_heights_of_the_grid_are_parameters(make):
    grid = read_parameters(make(grid_resolution_m=0.1, min_obstacle_height_m=0.02, max_obstacle_height_m=1)).config.grid
    assert (grid.resolution_m, grid.min_obstacle_height_m, grid.max_obstacle_height_m) == (0.1, 0.02, 1.0)


def test_none_is_empty_in_every_parameter_that_is_empty_by_default(make):
    names = [n for n, d in DECLARATIONS.items() if d.default == ""]
    values = read_parameters(make(**dict.fromkeys((*names, "weights", "camera__detections_topic"), "none")))
    assert (values.viewer, values.map_file, values.keyframe_path_topic) == ("", "", "")
    assert (values.config.network.weights, values.config.network.classes) == ("", ())
    assert values.cameras[0].detections_topic == ""
    assert (values.output_frame, values.map_frame, values.viewpoint_frame) == ("odom", "", "")
    change = [Parameter("output_frame", value="none")]
    assert check_change(change, configured=True).successful
    assert apply_change(values, change).output_frame == "odom"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("viewer", "windows", "viewer must be one of rerun, web (or empty, none), got 'windows'"),
        ("device", "gpu", "device must be cpu, cuda, cuda:0 (or another number) or auto, got 'gpu'"),
    ],
)
def test_a_wrong_value_is_answered_by_the_right_ones(name, value, words):
    assert parameters_module.parameter_problem(name, value) == words
