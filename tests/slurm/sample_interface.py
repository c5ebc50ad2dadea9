#!/usr/bin/env python3
"""Writes lines "seconds bytes" to a file until it is ended: what the interface eth0 of this network namespace has sent,
some fifty times a second."""

import sys
import time

with open(sys.argv[1], "w", buffering=1) as out:
    while True:
        with open("/proc/net/dev") as counters:
            sent = next(line.split()[9] for line in counters if line.lstrip().startswith("eth0:"))
        out.write("%.6f %s\n" % (time.time(), sent))
        time.sleep(0.02)
