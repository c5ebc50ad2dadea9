#!/usr/bin/env bash
# 10,000 damaged files of every kind that is read.
DAMAGES=${DAMAGES:-10000} exec "$PROGRAMS/checkpoint_test" --gtest_filter='*DamageSweep*'
