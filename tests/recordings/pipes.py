"""`pipes.py MOST SECONDS`: a pool of pipes that fills, and then has a new one for each old one."""

import os
import sys
import time

most, seconds = int(sys.argv[1]), float(sys.argv[2])
kept, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    kept.append(os.pipe())
    if len(kept) > most:
        for descriptor in kept.pop(0):
            os.close(descriptor)
    time.sleep(0.02)
