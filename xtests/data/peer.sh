#!/bin/sh
# Plays the peer of `bench --beside-torch`: without Python, it can, lacks, fails or hangs as its cases say.
ranks=1
while [ $# -gt 0 ]; do
    [ "$1" = --ranks ] && ranks=$2
    shift
done
echo "a peer of $ranks"
while read -r what rest; do
    case "$what $rest" in
    "run "*) echo 0.5 ;;
    *"add of 16"*) echo ready ;;
    *"ten maps of 16,"*) echo "Wrong: by much"; exit 1 ;;
    *"sum 65x32"*) exec sleep 600 ;;
    *"Llama"*"data parallel"*) echo "ready 7504 1 2 3" ;;
    *"Llama"*"fully"*) echo "ready 7504" ;;
    *"U-Net"*"data parallel"*) exit 1 ;;
    *) echo none ;;
    esac
done
