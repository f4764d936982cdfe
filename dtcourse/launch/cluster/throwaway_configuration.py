"""slurm.conf of a throw-away Slurm (throwaway.py)."""

CONFIGURATION = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{binds}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobRequeue=1
KillWait={grace}
MinJobAge={forgets}
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout={misses}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""
