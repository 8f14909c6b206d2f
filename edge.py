import numpy as np, itertools, math
from hud.judging.change_points import change_points as cp
rng=np.random.default_rng(0)
for n in range(0,25):
    for v in (np.ones(n),np.zeros(n),rng.normal(0,1,n),-np.abs(rng.normal(10,1,n)),rng.integers(0,2,n).astype(float),np.where(np.arange(n)<n//2,10,20.),rng.normal(0,1e-300,n), rng.normal(1e308,1e306,n).clip(-1.7e308,1.7e308)):
        r=cp(v.tolist()); assert all(0<x<n for x in r)
        cp(v.tolist(),groups=["a"]*n); cp(v.tolist(),groups=[None]*n); cp(v.tolist(),groups=[str(i%3) for i in range(n)])
        cp([None if i%4==0 else float(x) for i,x in enumerate(v)])
print(cp([10.]*10+[20.]*10), cp([10]*100+[10.05]*100), cp([10]*100+[10.2]*100), cp([0]*20+[1]*20), cp([-5]*20+[-6]*20), cp([10,10,10,10,20,20,20,20]),cp([10.]*30+[20.]*4), cp([10.]*30+[20.]*2), cp([10.]*50+[1e9]+[10.]*50))
y=rng.normal(0,.01,60); y[57:]+=.1; print('step 10% 3 pts from end', cp(np.exp(y).tolist())); 
y=rng.normal(0,.01,200)+np.arange(200)*.001; print('drift', cp(np.exp(y).tolist()))
d=[len(cp(np.exp(np.random.default_rng(i).normal(0,.01,200)+np.arange(200)*.001).tolist())) for i in range(50)]; print('drift flags',sum(d))
w=[len(cp(np.exp(np.random.default_rng(i).normal(0,.01,200)+.01*np.sin(np.arange(200)*2*np.pi/7)).tolist())) for i in range(50)]; print('weekly',sum(w))
for bad in (math.nan, math.inf):
    try: cp([1,2,bad,4,5]); print("no")
    except ValueError: pass
