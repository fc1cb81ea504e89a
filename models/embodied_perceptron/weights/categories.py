"""Category names of the EmbodiedScan benchmark: facts of its format, shared by data, network and evaluation."""

from __future__ import annotations

# The 284 classes of detection and grounding, in the benchmark's order.
DETECTION_CLASSES: tuple[str, ...] = (
    "adhesive tape", "air conditioner", "alarm", "album", "arch", "backpack", "bag", "balcony", "ball", "banister",
    "bar", "barricade", "baseboard", "basin", "basket", "bathtub", "beam", "beanbag", "bed", "bench", "bicycle",
    "bidet", "bin", "blackboard", "blanket", "blinds", "board", "body loofah", "book", "boots", "bottle", "bowl",
    "box", "bread", "broom", "brush", "bucket", "cabinet", "calendar", "camera", "can", "candle", "candlestick",
    "cap", "car", "carpet", "cart", "case", "chair", "chandelier", "cleanser", "clock", "clothes", "clothes dryer",
    "coat hanger", "coffee maker", "coil", "column", "commode", "computer", "conducting wire", "container",
    "control", "copier", "cosmetics", "couch", "counter", "countertop", "crate", "crib", "cube", "cup", "curtain",
    "cushion", "decoration", "desk", "detergent", "device", "dish rack", "dishwasher", "dispenser", "divider",
    "door", "door knob", "doorframe", "doorway", "drawer", "dress", "dresser", "drum", "duct", "dumbbell",
    "dustpan", "dvd", "eraser", "excercise equipment", "fan", "faucet", "fence", "file", "fire extinguisher",
    "fireplace", "flowerpot", "flush", "folder", "food", "footstool", "frame", "fruit", "furniture", "garage door",
    "garbage", "glass", "globe", "glove", "grab bar", "grass", "guitar", "hair dryer", "hamper", "handle",
    "hanger", "hat", "headboard", "headphones", "heater", "helmets", "holder", "hook", "humidifier", "ironware",
    "jacket", "jalousie", "jar", "kettle", "keyboard", "kitchen island", "kitchenware", "knife", "label", "ladder",
    "lamp", "laptop", "ledge", "letter", "light", "luggage", "machine", "magazine", "mailbox", "map", "mask",
    "mat", "mattress", "menu", "microwave", "mirror", "molding", "monitor", "mop", "mouse", "napkins", "notebook",
    "ottoman", "oven", "pack", "package", "pad", "pan", "panel", "paper", "paper cutter", "partition", "pedestal",
    "pen", "person", "piano", "picture", "pillar", "pillow", "pipe", "pitcher", "plant", "plate", "player", "plug",
    "plunger", "pool", "pool table", "poster", "pot", "price tag", "printer", "projector", "purse", "rack",
    "radiator", "radio", "rail", "range hood", "refrigerator", "remote control", "ridge", "rod", "roll", "roof",
    "rope", "sack", "salt", "scale", "scissors", "screen", "seasoning", "shampoo", "sheet", "shelf", "shirt",
    "shoe", "shovel", "shower", "sign", "sink", "soap", "soap dish", "soap dispenser", "socket", "speaker",
    "sponge", "spoon", "stairs", "stall", "stand", "stapler", "statue", "steps", "stick", "stool", "stopcock",
    "stove", "structure", "sunglasses", "support", "switch", "table", "tablet", "teapot", "telephone",
    "thermostat", "tissue", "tissue box", "toaster", "toilet", "toilet paper", "toiletry", "tool", "toothbrush",
    "toothpaste", "towel", "toy", "tray", "treadmill", "trophy", "tube", "tv", "umbrella", "urn", "utensil",
    "vacuum cleaner", "vanity", "vase", "vent", "ventilation", "wardrobe", "washbasin", "washing machine",
    "water cooler", "water heater", "window", "window frame", "windowsill", "wine", "wire", "wood", "wrap",
)  # fmt: skip

# Positions in DETECTION_CLASSES by how often a class occurs.
HEAD_CLASSES: tuple[int, ...] = (
    48, 177, 82, 179, 37, 243, 28, 277, 32, 84, 215, 145, 182, 170, 22, 72, 30, 141, 65, 257, 221, 225, 52, 75,
    231, 158, 236, 156, 47, 74, 6, 18, 71, 242, 217, 251, 66, 263, 5, 45, 14, 73, 278, 198, 24, 23, 196, 252, 19,
    135, 26, 229, 183, 200, 107, 272, 246, 269, 125, 59, 279, 15, 163, 258, 57, 195, 51, 88, 97, 58, 102, 36, 137,
    31, 80, 160, 155, 61, 238, 96, 190, 25, 219, 152, 142, 201, 274, 249, 178, 192,
)  # fmt: skip
COMMON_CLASSES: tuple[int, ...] = (
    189, 164, 101, 205, 273, 233, 131, 180, 86, 220, 67, 268, 224, 270, 53, 203, 237, 226, 10, 133, 248, 41, 55,
    16, 199, 134, 99, 185, 2, 20, 234, 194, 253, 35, 174, 8, 223, 13, 91, 262, 230, 121, 49, 63, 119, 162, 79, 168,
    245, 267, 122, 104, 100, 1, 176, 280, 140, 209, 259, 143, 165, 147, 117, 85, 105, 95, 109, 207, 68, 175, 106,
    60, 4, 46, 171, 204, 111, 211, 108, 120, 157, 222, 17, 264, 151, 98, 38, 261, 123, 78, 118, 127, 240, 124,
)  # fmt: skip
TAIL_CLASSES: tuple[int, ...] = (
    76, 149, 173, 250, 275, 255, 34, 77, 266, 283, 112, 115, 186, 136, 256, 40, 254, 172, 9, 212, 213, 181, 154,
    94, 191, 193, 3, 130, 146, 70, 128, 167, 126, 81, 7, 11, 148, 228, 239, 247, 21, 42, 89, 153, 161, 244, 110, 0,
    29, 114, 132, 159, 218, 232, 260, 56, 92, 116, 282, 33, 113, 138, 12, 188, 44, 150, 197, 271, 169, 206, 90,
    235, 103, 281, 184, 208, 216, 202, 214, 241, 129, 210, 276, 64, 27, 87, 139, 227, 187, 62, 43, 50, 69, 93, 144,
    166, 265, 54, 83, 39,
)  # fmt: skip

BY_FREQUENCY: tuple[str, ...] = tuple(DETECTION_CLASSES[i] for i in (*HEAD_CLASSES, *COMMON_CLASSES, *TAIL_CLASSES))

# The 20 common classes of monocular detection (EmbodiedScan, CVPR 2024, Tables 4 and 11), in the order of Table 11.
MONOCULAR_CLASSES: tuple[str, ...] = (
    "chair", "pillow", "cabinet", "table", "lamp", "couch", "desk", "stand", "bed", "backpack", "bathtub", "ottoman",
    "dresser", "bin", "toilet", "refrigerator", "stove", "microwave", "monitor", "computer",
)  # fmt: skip

# Semantic occupancy: label k + 1 is OCCUPANCY_CLASSES[k]; 0 is empty, 255 is ignored.
OCCUPANCY_CLASSES: tuple[str, ...] = (
    "floor", "wall", "chair", "cabinet", "door", "table", "couch", "shelf", "window", "bed", "curtain", "desk",
    "doorframe", "plant", "stairs", "pillow", "wardrobe", "picture", "bathtub", "box", "counter", "bench", "stand",
    "rail", "sink", "clothes", "mirror", "toilet", "refrigerator", "lamp", "book", "dresser", "stool", "fireplace",
    "tv", "blanket", "commode", "washing machine", "monitor", "window frame", "radiator", "mat", "shower", "rack",
    "towel", "ottoman", "column", "blinds", "stove", "bar", "pillar", "bin", "heater", "clothes dryer", "backpack",
    "blackboard", "decoration", "roof", "bag", "steps", "windowsill", "cushion", "carpet", "copier", "board",
    "countertop", "basket", "mailbox", "kitchen island", "washbasin", "bicycle", "drawer", "oven", "piano",
    "excercise equipment", "beam", "partition", "printer", "microwave", "frame",
)  # fmt: skip
OCCUPANCY_IGNORED = 255

# Annotated but never detected.
STRUCTURE_CLASSES: tuple[str, ...] = ("wall", "ceiling", "floor", "object")

# Everything that can be annotated: 288 names in alphabetical order.
ALL_CATEGORIES: tuple[str, ...] = tuple(sorted((*DETECTION_CLASSES, *STRUCTURE_CLASSES)))
