#!/usr/bin/env bash
# ROS, then this project's packages, then the command; exec, so that signals reach it.
set -eo pipefail # no -u: ROS's set-up files read unset variables
source "/opt/ros/${ROS_DISTRO}/setup.bash"
source /opt/embodied_perceptron/local_setup.bash
exec "$@"
