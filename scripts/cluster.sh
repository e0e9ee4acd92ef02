#!/bin/sh
# Three nodes of one cluster on this machine, each with a prefix before what it says; Ctrl-C stops them all in order.
# CLUSTER_DIR: where their data goes. RAFT_PORTS: one for each node. What is given is handed to each of them, for example
# --set log.level=warning.
set -u

program=${ICESTREAM:-.venv/bin/icestream}
directory=${CLUSTER_DIR:-icestream-cluster}
ports=${RAFT_PORTS:-7650 7651 7652}
seeds=
pids=

stop() {
    trap '' INT TERM
    for pid in $pids; do
        kill -TERM "$pid" 2>/dev/null
    done
}

trap stop INT TERM
for port in $ports; do
    seeds=$seeds${seeds:+,}0.0.0.0:$port
done
for port in $ports; do
    out=$(mktemp -u)
    mkfifo "$out"
    # a session of its own: Ctrl-C is for this script, which then stops them in order
    setsid "$program" serve --raft-port "$port" --set "data_dir=$directory" --set "meta_store.seed_nodes=$seeds" "$@" \
        >"$out" 2>&1 &
    pids="$pids $!"
    # removed when it is open at both ends, and not before: whoever came later would find nothing, or make a file
    { rm "$out"; exec sed -u "s/^/$port  /"; } <"$out" &
done
status=0
for pid in $pids; do
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        found=$?
        kill -0 "$pid" 2>/dev/null || { [ "$found" -eq 0 ] || status=$found; }
    done
done
wait
exit "$status"
