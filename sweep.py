import sys; sys.path.insert(0,'/work/h/judging')
from dev import *
import dev, core
from hud.judging.change_points import detect as D, evidence as E
def both(each=40,seed=1000):
    for nm,K in (("core",core.CORE),("wide",core.WIDE)):
        T=core.T; T.KINDS.clear(); T.KINDS.update(K)
        print(nm,end=' '); run(lambda v: D.detect(np.log(v)),each=each,seed=seed)
if __name__=="__main__":
    for C in (2.5,):
        D.C=C
        for one,two,keep in ((14,24,14),(14,28,14)):
            E._ONE,E._TWO,E._KEEP=one,two,keep
            print(C,one,two,keep); both()
