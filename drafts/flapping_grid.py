import math, random, statistics, sys
from dtcourse.heterogeneous import Hysteresis, Meter, proportional_shares, step_seconds, ideal_seconds
P=4; BATCH=768
def run(way, seed, noise, change, rho=0.0, steps=100, at=50, patience=2, thr=0.05, window=7):
    speeds=[3.,3.,1.,3.]
    draw=random.Random(seed); shares=proportional_shares(BATCH,speeds); moves=0; over=[]; past=[]; 
    rule=Hysteresis(threshold=thr,patience=patience); meters=[Meter(window=window) for _ in speeds]
    z=[0.]*P; lag=None
    for t in range(steps):
        if t==at and change!=1: speeds=[speeds[0]/change,*speeds[1:]]
        z=[rho*a+math.sqrt(1-rho*rho)*draw.gauss(0,1) for a in z]
        sec=[n/s*math.exp(noise*e) for n,s,e in zip(shares,speeds,z)]
        over.append(max(sec)/ideal_seconds(BATCH,speeds))
        if way=='never': continue
        if way=='rule':
            for m,s,n in zip(meters,sec,shares): m.add(s,n)
            known=[m.capability() for m in meters]
            better=proportional_shares(BATCH,[k.speed for k in known],least=1)
            now,then=([n*k.seconds for n,k in zip(s,known)] for s in (shares,better))
            if known[0].number>=3 and rule.moves(now,then,known):
                shares=better; moves+=1
                for m in meters: m.clear()
        else:
            w,t0=way
            past.append([n/s for n,s in zip(shares,sec)])
            est=[statistics.median(e) for e in zip(*past[-w:])]
            better=proportional_shares(BATCH,est,least=1)
            if step_seconds(shares,est)/step_seconds(better,est)-1>t0: shares=better; moves+=1
    return moves, statistics.mean(over[:at]), statistics.mean(over[at:])
ways={'last 0':(1,0.),'last 5':(1,.05),'last 20':(1,.2),'med7 5':(7,.05),'med7 20':(7,.2),'rule':'rule','never':'never'}
S=int(sys.argv[1]) if len(sys.argv)>1 else 8
for noise in (.02,.05,.1):
  for rho in (0.,.8):
    for change in (1,1.15,1.3,3):
        print('noise',noise,'rho',rho,'change',change, end=' | ')
        for name,w in ways.items():
            r=[run(w,s,noise,change,rho) for s in range(S)]
            print(name,f"{statistics.mean(x[0] for x in r):.1f} {statistics.mean(x[1] for x in r):.3f} {statistics.mean(x[2] for x in r):.3f}",end=' | ')
        print(flush=True)
