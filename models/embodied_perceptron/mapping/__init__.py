"""The incrementally updated sparse voxel volume and its keyframes."""
