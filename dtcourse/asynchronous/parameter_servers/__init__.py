"""Parameter servers: workers push gradients and pull parameters, and a rule says who waits for whom.

In the order in which to read them:

    update_rules.py              what a server does with a gradient, and whom it lets wait
    backup_workers.py            a rule that does not wait for the slowest
    roles.py                     who is a server and who a worker, and what travels between them
    links.py                     how they reach each other
    worker.py                    pushes gradients, pulls parameters
    serving.py                   receives gradients, lets the rule decide, answers
    parameter_server.py          one rank holds the model, and serves it
    sharded_parameter_server.py  many servers, each with a part of it
    colocated.py                 the servers on the workers' own ranks
    rpc_parameter_server.py      the same by PyTorch's remote calls; imported by itself
"""
