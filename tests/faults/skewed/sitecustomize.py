"""For processes of a host whose clock is wrong: `SKEW_S` seconds ahead of the machine's."""

import os
import time

_true = time.time
time.time = lambda: _true() + float(os.environ["SKEW_S"])
