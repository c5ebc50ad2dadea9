#!/usr/bin/env bash
# killed_runs_test.sh with 100 kills.
KILLS=${KILLS:-100} exec bash "${BASH_SOURCE[0]%_long.sh}_test.sh"
