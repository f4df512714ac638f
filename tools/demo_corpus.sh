# The text of the demos (demo.sh, demo_moe.sh): English of Debian's perl-doc and a vocabulary of its own, in corpus/.
# Sets `entropy`, that of the validation tokens' frequencies, in nats. To be sourced at the top of the tree.
# shellcheck shell=sh disable=SC2154,SC2034,SC2086
if [ ! -f corpus/validation.idx ]; then
    pods=$(find /usr/share/perl -name '*.pod' -size +2k | sort)
    [ -n "$pods" ] || { echo "demo: no text found: the package perl-doc brings it (apt-get install perl-doc)" >&2; exit 1; }
    # every twentieth page is held out
    training=$(echo "$pods" | awk 'NR % 20 != 0') validation=$(echo "$pods" | awk 'NR % 20 == 0')
    $phalanx tokenize --output corpus/train --tokenizer corpus/tokenizer.model --train-vocab 4096 --force $training
    $phalanx tokenize --output corpus/validation --tokenizer corpus/tokenizer.model --force $validation
fi
entropy=$($phalanx inspect corpus/validation --verify | sed -n 's/.*unigram entropy: \([0-9.]*\).*/\1/p')
