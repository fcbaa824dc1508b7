#!/usr/bin/env bash
# Everything that waits for a GPU, stage by stage, most telling first; a table last.
#
#   benchmarks/gpu.sh               run what is left of it; a stage that ended is not begun again
#   benchmarks/gpu.sh --cpu-check   every stage once on the CPU, at toy sizes; nothing is stored
#
# Nothing is installed: PY is a Python with torch, triton, numpy, scipy, scikit-learn, joblib, pytest and hypothesis.
# Figures are stored only on code whose tests have passed (.benchmarks-verified, which `python -m benchmarks verify`
# writes on any machine). They go to benchmarks/results, and with what the tests said to OUT, where that is given.
set -u
[ -n "${OUT:-}" ] && { mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd); }
cd "$(dirname "$0")/.."
PY=${PY:-python3} LIMIT=${LIMIT:-590} CHECK=${1:-}
NOTES=${NOTES:-.gpu-stages}${CHECK:+/check}
mkdir -p "$NOTES"

measured() { "$PY" -m benchmarks gpu "$@" ${CHECK:+--cpu-check}; }
tested() { "$PY" -m pytest -q -p no:cacheprovider -m gpu "$@" ${CHECK:+--collect-only}; }

stage() {
    local name=$1 code=0
    shift
    [ -z "$CHECK" ] && [ -e "$NOTES/$name.done" ] && { echo "== $name: done before"; return; }
    echo "== $name"
    local began=$SECONDS
    ( export -f measured tested; export PY CHECK; timeout "$LIMIT" bash -c '"$@"' stage "$@" ) > "$NOTES/$name.log" 2>&1 || code=$?
    tail -n 15 "$NOTES/$name.log"
    [ "$code" -eq 0 ] && [ -z "$CHECK" ] && touch "$NOTES/$name.done"
    echo "== $name: $((SECONDS - began)) s, status $code"
    failed=$((failed + (code != 0)))
}

failed=0
stage machine measured machine
stage kernel-tests tested tests/test_kernels.py tests/test_tiles.py tests/test_repeated.py
stage jobs measured jobs
stage preparation measured preparation
stage tests tested tests --ignore=tests/test_kernels.py --ignore=tests/test_tiles.py --ignore=tests/test_repeated.py
stage floors measured kernels dense stream tiles
stage million measured million
stage variants measured variants
stage rest measured rows sharp large
stage phases measured phases

if [ -n "${OUT:-}" ]; then
    cat "$NOTES"/*.log > "$OUT/stages.log"
    cp benchmarks/results/gpu.json benchmarks/results/*_gpu.json torchgw/kernels/measured.json "$OUT" 2> /dev/null
fi
[ -z "$CHECK" ] && "$PY" -c 'from benchmarks import gpu; gpu.tell()'
echo "== $failed stages failed"
exit $((failed > 0))
