#!/usr/bin/env bash
# killed_saves_test.sh with 1,000 kills.
KILLS=${KILLS:-1000} exec bash "${BASH_SOURCE[0]%_long.sh}_test.sh"
