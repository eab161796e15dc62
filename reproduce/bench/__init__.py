"""The benchmark: this project's engines beside each other, and beside public peers.

workload   the models, the data and the sizes
measure    interleaved rounds, medians of paired runs
engines    how the project's own engines are timed
peers      how everybody else is timed: plain torch, torch.distributed.pipelining, torchgpipe
groups     what is run side by side
figures    which numbers come of it
report     as JSON and as a table
"""
