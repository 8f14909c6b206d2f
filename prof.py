import sys; sys.path.insert(0,'/work/h/judging')
from dev2 import *
import cProfile,pstats
KINDS.clear(); KINDS.update(core.WIDE)
s=[series(k,"two steps",1,5000) for k in ("ar1","two modes","gaussian")]
for x in s: cp(x.values)
pr=cProfile.Profile(); pr.enable()
for x in s: cp(x.values)
pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(14)
