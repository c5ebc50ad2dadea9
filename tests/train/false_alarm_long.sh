#!/usr/bin/env bash
# A thousand steps of each layout of false_alarm_test.sh.
ALARM_STEPS=1000 exec bash "$SOURCE/tests/train/false_alarm_test.sh"
