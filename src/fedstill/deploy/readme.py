"""The README of a Flower app: every command, ready to copy."""

from fedstill.config import Experiment
from fedstill.version import VERSION

_TEXT = """\
# {method} on {nodes} nodes

Made by `fedstill deploy init` (fedstill {version}). The experiment is in `experiment.toml`; what
nodes must agree on (shape and classes of the data, scaling) is in `task.json`. After a change of
`experiment.toml` run `fedstill deploy check .` again. fedstill's `docs/deploy.md` has the full
guide and the security model.

On every machine: `pip install 'fedstill[flower]=={version}'`.

## The server ({host})

```console
$ source environment.sh && export FLWR_HOME=$PWD/flower
$ fedstill deploy check .
$ flower-superlink --host 0.0.0.0 --port {port} --database superlink.db \\
    --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \\
    --ssl-keyfile certificates/server.key --enable-supernode-auth \\
    --disable-runtime-dependency-installation
```

**Flower's control API is open on the same port**: whoever reaches it can list nodes and start
runs, with or without node authentication. Expose only the nodes' part of it, as `docs/deploy.md`
shows ("Close the control API").

In a second terminal, register the nodes' public keys (`keys/node-0.pub` to
`keys/node-{last}.pub`), once, and again when a key is replaced:

```console
$ fedstill deploy register .
```

It writes `nodes.toml`, which binds each key to its client: a registered node cannot take the place
of another one.

## Each node

Copy to node K: `certificates/ca.crt`, `keys/node-K`, `environment.sh`, and for the check
`experiment.toml`, `task.json` and `pyproject.toml`. Nothing else leaves the server. (Better:
make the key on the node, `fedstill deploy key node-K`, and copy only `node-K.pub` to the server.)

```console
$ source environment.sh
$ fedstill deploy check . --node K{data_check}
$ flower-supernode --superlink {host}:{port} --root-certificates certificates/ca.crt \\
    --auth-supernode-private-key keys/node-K \\
    --node-config 'partition-id=K folder="/var/lib/fedstill"{data_config}'
```

{data_text}

## The run

On the server:

```console
$ fedstill deploy run .
$ fedstill deploy run . --resume     # after a crash
```

It shows the run's log, and its exit code says how the run ended. (`flwr run . deployment --stream`
does the same, but ends with 0 even if the run failed.) The run folder is `runs/experiment`, below
the folder the SuperLink was started in (`--out /srv/runs/second` for another one).

## As services

`services/` has both programs for systemd: they come back by themselves, with limits on memory and
on what they may write. Edit user and paths, then:

```console
$ cp services/fedstill-superlink.service /etc/systemd/system/      # on the server
$ systemctl enable --now fedstill-superlink
$ cp services/fedstill-supernode@.service /etc/systemd/system/     # on node K
$ systemctl enable --now fedstill-supernode@K
```
"""

_OWN = """\
`data` is the node's own records: a folder with `train.parquet`, one folder of images per class, or
an `.npz` file with `x_train` and `y_train`. They never leave the node."""

_PARTITIONED = """\
This experiment partitions the records of `{data}` over the nodes, which is meant for tests: every
node has a copy of the whole data set and uses its part. For records that are on the nodes, make the
app with `--partition nodes` and give each node `data="PATH"`."""


def readme(experiment: Experiment, host: str, port: int, nodes: int) -> str:
    """The README for this experiment."""
    own = experiment.partition == "nodes"
    return _TEXT.format(
        method=experiment.method["name"],
        nodes=nodes,
        version=VERSION,
        host=host,
        port=port,
        last=nodes - 1,
        data_check=" --data /srv/records" if own else "",
        data_config=' data="/srv/records"' if own else "",
        data_text=_OWN if own else _PARTITIONED.format(data=experiment.data.name),
    )
