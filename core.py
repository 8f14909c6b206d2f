import sys; sys.path.insert(0,'/work/h/judging')
import numpy as np
import tests.judging.truth as T
def g(ch,n): return ch.normal(0,.01,n)
def ar(ch,n):
    x=np.empty(n); x[0]=ch.normal(0,.01); e=ch.normal(0,.01*np.sqrt(1-.25),n)
    for i in range(1,n): x[i]=.5*x[i-1]+e[i]
    return x
def out(ch,n): return ch.normal(0,.01,n)+(ch.random(n)<.05)*ch.uniform(.05,.3,n)
def bi(ch,n): return ch.normal(0,.01,n)+(ch.random(n)<.3)*.03
def ln(ch,n): 
    s=.6; x=ch.lognormal(0,s,n); return .01*(x-np.exp(s*s/2))/np.sqrt((np.exp(s*s)-1)*np.exp(s*s))
def rw(ch,n): return ch.normal(0,.01,n)+np.cumsum(ch.normal(0,.001,n))
def q(ch,n): return ch.normal(0,.01,n)
def t3(ch,n): return .01*ch.standard_t(3,n)/np.sqrt(3)
CORE=dict(zip(T.KINDS,(g,ar,out,bi,ln,rw,q,t3)))
WIDE=dict(T.KINDS)
