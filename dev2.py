import sys; sys.path.insert(0,'/work/h/judging')
from dev import *
import core, time
from hud.judging.change_points import change_points as cp
def both(each=40,seed=1000):
    for nm,K in (("core",core.CORE),("wide",core.WIDE)):
        T=core.T; T.KINDS.clear(); T.KINDS.update(K)
        print(nm,end=' '); run(lambda v: cp(v.tolist()),each=each,seed=seed)
def groups(each=60,seed=7000):
    for what,size in (("steps",.02),("steps",.03),("steps",.05),("mixture",0.),("renamed",0.),("renamed",.02),("new label",0.),("a fifth unknown",0.),("a fifth unknown",.02),("quiet",0.)):
        sc=Score(); t=time.process_time(); fl=0
        for i in range(each):
            s=grouped(what,size,seed+i); f=cp(s.values,groups=s.groups)
            sc.add(s.truth,f,200,10 if what=="mixture" else 3)
        print(f"{what:16s} {size:g} P {sc.precision:.3f} R {sc.recall:.3f} quiet/1000 {sc.per_1000:.2f} false {sc.false} ms {(time.process_time()-t)/each*1e3:.2f}")
def timing():
    for K in (core.CORE,core.WIDE):
        KINDS.clear(); KINDS.update(K)
        for n in (200,5000):
            for k in KINDS:
                ts=[]
                for i in range(15 if n==200 else 2):
                    s=series(k,"two steps",i,n); t=time.process_time(); cp(s.values); ts.append((time.process_time()-t)*1e3)
                print(n,k,round(float(np.median(ts)),2),round(max(ts),2),end=' | ')
            print()
if __name__=="__main__":
    for a in sys.argv[1:]: (both(seed=9000) if a=="both2" else globals()[a]())
