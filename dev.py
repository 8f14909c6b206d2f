import sys,time,importlib
sys.path.insert(0,'/work/h/judging')
import numpy as np
from tests.judging.truth import *
def run(fn, each=30, seed=1000, verbose=True):
    tot=Score(); t0=time.process_time(); n=0
    by={}
    for k in KINDS: by[k]=Score()
    miss={}
    for s in all_kinds(each,seed):
        f=fn(np.array(s.values)); n+=1
        tot.add(s.truth,f,len(s.values)); b=by[s.kind]; h=b.hits; b.add(s.truth,f,len(s.values))
        key=(s.kind,s.size)
        if s.truth: 
            m=miss.setdefault(key,[0,0]); m[0]+=b.hits-h; m[1]+=len(s.truth)
    ms=(time.process_time()-t0)/n*1e3
    print(f"ALL P {tot.precision:.3f} R {tot.recall:.3f} false/1000 {tot.per_1000:.2f}  ms/series {ms:.2f}")
    for k,b in by.items():
        print(f"  {k:12s} P {b.precision:.3f} R {b.recall:.3f} f/1000 {b.per_1000:.2f}   "+' '.join(f"{sz:g}:{miss[(k,sz)][0]/miss[(k,sz)][1]:.2f}" for sz in (.02,.03,.05,.1) if (k,sz) in miss))
if __name__=="__main__":
    from hud.judging.change_points import detect as D
    run(lambda v: D.detect(np.log(v)))
