import numpy as np, time
from hud.judging.verdict import *
rng=np.random.default_rng(5); R=Rule()
def h(n=60): return (10*np.exp(rng.normal(0,.01,n))).tolist()
N=4000; t=time.process_time()
for n in (20,60):
    s=f=0
    for _ in range(5*N):
        hh=h(n); x=10*np.exp(rng.normal(0,.01)); v=judge(hh,[x],R)
        if v.verdict in("regressed","improved"): f+=1
        elif v.suspect:
            s+=1; v=judge(hh,[x,10*np.exp(rng.normal(0,.01))],R); f+= v.verdict in("regressed","improved")
    print(n,"per 4000: suspects",s/5,"flags",f/5)
    a=sum(judge(h(n),[10.7*np.exp(rng.normal(0,.01))],R).verdict=="regressed" for _ in range(1000))/1000
    b=c=0
    for _ in range(1000):
        hh=h(n); x=10.5*np.exp(rng.normal(0,.01)); v=judge(hh,[x],R); c+=v.verdict=="regressed"
        if v.suspect or v.verdict=="regressed": b+= judge(hh,[x,10.5*np.exp(rng.normal(0,.01))],R).verdict=="regressed"
    print("   7% first",a,"5% after repeat",b/1000,"5% first",c/1000)
print((time.process_time()-t)/(5*2*N)*1e3,"ms per call about")
# groups
def lottery(n,k=5):
    off=np.log1p(rng.uniform(0,.4,k)); d=rng.integers(0,k,n); return off,d
fl=sus=unk=det=0
for _ in range(2000):
    off,d=lottery(61); y=10*np.exp(off[d]+rng.normal(0,.003,61)); g=[f"v{i}" for i in d]
    v=judge(y[:60].tolist(),[y[60]],R,groups=g[:60],group=g[60]); fl+=v.verdict in("regressed","improved"); sus+=v.suspect
    v=judge(y[:60].tolist(),[y[60]*1.03],R,groups=g[:60],group=g[60]); det+=v.verdict=="regressed"
    v=judge(y[:60].tolist(),[y[60]],R,groups=g[:60],group="new"); unk+=v.verdict in("regressed","improved")
print("groups: flags",fl,"suspects",sus,"3% found",det/2000,"unknown flagged",unk, "of 2000")
print(judge(h(60),[20],R,groups=["a","b"]*30,group="c"), judge(h(3),[20],R), judge(h(4),[11],R),judge(h(60),[11],R,groups=["a"]*60,group=None))
