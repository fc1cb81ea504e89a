"""ROS 2 side of Embodied Perceptron: node, conversions, transforms, players."""
