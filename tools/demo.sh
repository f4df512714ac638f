#!/bin/sh
# The demo: English text from Debian's perl-doc, a vocabulary of its own, a small Llama, a sample. About six minutes on
# two cores. `make demo` runs it; everything lands in corpus/ and runs/demo, and a second call goes on where the first
# ended. DEMO_KEYS, if set, is added to the training's command: "train.steps=140 optimizer.warmup=35" takes a quarter of
# the time.
set -eu
cd "$(dirname "$0")/.."
phalanx=build/phalanx
# shellcheck disable=SC1091,SC2154
. tools/demo_corpus.sh
# shellcheck disable=SC2086
$phalanx train models/configs/demo.yaml ${DEMO_KEYS:-}
loss=$(sed -n 's/.*"eval_loss": *\([0-9.]*\).*/\1/p' runs/demo/metrics.jsonl | tail -n 1)
echo
echo "validation loss $loss nats a token; entropy of the tokens' frequencies $entropy"
echo "a sample from runs/demo, which has read six minutes of manuals:"
echo
$phalanx generate --checkpoint runs/demo --prompt "This document describes how" --tokens 120 --temperature 0.7 --top-k 50 --seed 7
cat <<'NEXT'

what next:
  build/phalanx generate --checkpoint runs/demo --prompt "The function returns" --tokens 60    another sample
  build/phalanx report runs/demo --output report.html                                          its curves on one page
  build/phalanx train models/configs/demo.yaml train.steps=1120                                trains on
  build/phalanx help                                                                           other topics
README.md, "Train your own", turns a folder of your texts into data, a vocabulary and a model.
NEXT
