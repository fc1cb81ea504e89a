"""ROS messages <-> values. Pure functions, no node."""
