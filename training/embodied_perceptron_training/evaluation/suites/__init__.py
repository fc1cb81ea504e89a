"""Suites of other systems: 3D-POPE, ARKitSceneRefer, OpenLex3D, 3D-GRAND, BEHAVIOR Vision Suite, ScanRefer."""
