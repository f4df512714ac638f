# The layouts in which same_bits.sh and same_plans.sh compare two builds; both source this file. It expects the old
# build's path in $old, and in $top a folder for the data and the configurations.

widths="hidden_size: 48, heads: 12, head_size: 8, ffn_size: 100"
gpt2="architecture: gpt2, layers: 6, hidden_size: 48, heads: 12"
grouped="architecture: llama, layers: 8, $widths, kv_heads: 2, tied_embeddings: false"
tied="architecture: llama, layers: 6, $widths, kv_heads: 3, tied_embeddings: true"
qwen3="architecture: qwen3, layers: 6, $widths, kv_heads: 6"
experts="experts: 6, expert_ffn_size: 22, router_loss: 0.1"
mixtral="architecture: mixtral, layers: 6, $widths, kv_heads: 2, $experts, router_z_loss: 0.01"
shared="architecture: glm4_moe, layers: 6, $widths, kv_heads: 2, $experts, shared_experts: 2, dense_layers: 1"
shared="$shared, router_groups: 3, router_groups_kept: 2, qk_norm: true, rotary_size: 4, router_bias_rate: 0.03"
window="sliding_window: 9, full_every"
sinks="architecture: gpt_oss, layers: 6, $widths, kv_heads: 2, $experts, swiglu_limit: 0.1, $window: 2"
gemma3="architecture: gemma3_text, layers: 6, $widths, kv_heads: 3, $window: 3, rope_local_theta: 1000"
mtp="architecture: glm4_moe, layers: 5, $widths, kv_heads: 2, $experts, shared_experts: 1, mtp_layers: 1"
mtp_tied="$mtp, tied_embeddings: true"
latents="kv_lora_rank: 18, rope_head_size: 4, v_head_size: 7, dense_layers: 1, $experts"
latent="architecture: deepseek_v3, layers: 6, $widths, q_lora_rank: 22, shared_experts: 1, $latents"
direct="architecture: deepseek_v2, layers: 6, $widths, $latents"

narrow="train.precision=bf16 optimizer.state=bf16 optimizer.master=bf16"
offload="memory.offload=optimizer memory.window=16KiB"
streams="outer.every=4 outer.fragments=2 outer.delay=1 outer.mix=0.5"
each="parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"
documents="parallel.context_balance=documents data.document_mask=true"
clip="optimizer.name=muon optimizer.muon_lr=0.02 optimizer.qk_clip"
gather="parallel.expert_dispatch=gather parallel.expert"
slots="parallel.expert_dispatch=slots parallel.expert"
p() { echo "parallel.tensor=$1 parallel.pipeline=$2 parallel.zero=$4 parallel.schedule=$5"; }

# A row is: name | ranks | model | overrides | overrides of a second run that resumes the first (or nothing).
layouts="gpt2-alone|1|$gpt2|train.dropout=0.1|
gpt2-zero0|2|$gpt2|$(p 1 1 2 0 1f1b)|
gpt2-gpipe|4|$gpt2|$(p 2 2 1 0 gpipe) memory.recompute=full|
gpt2-dropout-interleaved|2|$gpt2|$(p 1 2 1 1 interleaved) parallel.virtual_stages=3 train.dropout=0.1|
gpt2-bf16-zb|4|$gpt2|$(p 2 2 1 1 zb-h1) train.precision=bf16|
gpt2-zero3-each|3|$gpt2|$(p 1 1 3 3 1f1b) $each|
gpt2-budget|2|$gpt2|$(p 1 2 1 1 1f1b) memory.budget=BUDGET|
grouped-copies|4|$grouped|$(p 4 1 1 1 1f1b) parallel.sequence=false memory.recompute=selective|
grouped-zero2|4|$grouped|$(p 2 1 2 2 1f1b) parallel.zero_reduce=micro_batch|
grouped-bf16-zero3|2|$grouped|$(p 1 1 2 3 1f1b) train.precision=bf16|
grouped-three-axes|8|$grouped|$(p 2 2 2 3 interleaved) parallel.virtual_stages=2 $each|
grouped-copies-zero2|8|$grouped|$(p 4 1 2 2 1f1b) $each|
tied-pipeline|4|$tied|$(p 1 2 2 1 zb-h1)|
tied-zero3|6|$tied|$(p 3 1 2 3 1f1b) parallel.zero_gather=micro_batch|
tied-fp16|2|$tied|$(p 1 2 1 1 1f1b) train.precision=fp16 train.loss_scale=4096|
qwen3-norms|4|$qwen3|$(p 2 1 2 0 1f1b) memory.recompute=full|
gemma3-windows|3|$gemma3|$(p 3 1 1 1 1f1b)|
gpt2-zb-h2|2|$gpt2|$(p 1 2 1 0 zb-h2)|
grouped-zb-v|4|$grouped|$(p 2 2 1 1 zb-v) parallel.virtual_stages=2|
grouped-v-half|2|$grouped|$(p 1 2 1 1 v-half) parallel.virtual_stages=2|
tied-v-min|3|$tied|$(p 1 3 1 1 v-min) parallel.virtual_stages=2 train.precision=bf16|
tied-vocabulary|6|$tied|$(p 3 2 1 0 1f1b) parallel.vocabulary=stages|
grouped-vocabulary-zb|4|$grouped|$(p 1 2 2 1 zb-h1) parallel.vocabulary=stages memory.recompute=full|
gpt2-auto|2|$gpt2|$(p 1 2 1 1 auto)|
grouped-parts|2|$grouped|$(p 2 1 1 1 1f1b) parallel.order=parts|
grouped-int8|4|$grouped|$(p 2 1 2 1 1f1b) parallel.compress=int8|
tied-topk|2|$tied|$(p 1 1 2 0 1f1b) parallel.compress=topk parallel.density=0.1|
qwen3-muon|4|$qwen3|$(p 2 1 2 1 1f1b) optimizer.name=muon optimizer.muon_lr=0.01|
gpt2-lion-narrow|2|$gpt2|$(p 1 1 2 2 1f1b) optimizer.name=lion $narrow|
documents-ramp|2|$grouped|$(p 1 2 1 1 1f1b) data.document_mask=true train.batch_ramp=[[0,12],[1,24]]|
context-halves|2|$grouped|$(p 1 1 1 1 1f1b) parallel.context=2 train.dropout=0.1|
context-halves-zero3|4|$tied|$(p 1 1 2 3 1f1b) parallel.context=2 $each|
context-documents|2|$grouped|$(p 1 1 1 1 1f1b) parallel.context=2 $documents|
context-documents-stages|4|$tied|$(p 1 2 1 1 zb-h1) parallel.context=2 parallel.vocabulary=stages $documents|
experts-whole|2|$mixtral|$(p 1 1 2 3 1f1b) $each|
experts-gather|4|$mixtral|$(p 2 1 2 1 1f1b) $gather=2|
experts-gather-stages|4|$shared|$(p 2 2 1 1 zb-v) parallel.virtual_stages=2 $gather=2 memory.recompute=selective|
experts-slots|4|$mixtral|$(p 1 1 4 3 1f1b) $slots=2 $each|
experts-slots-bf16|4|$shared|$(p 2 1 2 1 1f1b) $slots=2 train.precision=bf16|
experts-replayed|2|$mixtral|$(p 1 1 2 1 1f1b) $gather=2 model.expert_capacity=0.4 model.expert_spill=1|
experts-replayed-slots|3|$shared|$(p 1 1 3 2 1f1b) $slots=3 model.expert_capacity=0.3 model.expert_spill=1|
experts-dropped|2|$mixtral|$(p 1 1 2 1 1f1b) $slots=2 model.expert_capacity=0.4 model.expert_drop=true|
latent-tensor|4|$latent|$(p 4 1 1 1 1f1b) $gather=4 memory.recompute=full|
latent-context|2|$latent|$(p 1 1 1 1 1f1b) parallel.context=2 parallel.context_gather=latent|
latent-keys-documents|4|$direct|$(p 1 2 1 1 zb-h1) parallel.context=2 parallel.context_gather=keys $documents|
sinks-tensor|4|$sinks|$(p 2 1 2 3 1f1b) $gather=4|
sinks-context|4|$sinks|$(p 1 2 1 1 zb-h1) parallel.context=2 memory.recompute=full|
mtp-pipeline|4|$mtp|$(p 2 2 1 1 1f1b) data.document_mask=true|
mtp-tied-vocabulary|4|$mtp_tied|$(p 1 2 2 1 1f1b) parallel.vocabulary=stages $slots=2 train.dropout=0.1|
qk-clip|4|$grouped|$(p 2 1 1 1 1f1b) parallel.context=2 $clip=0.1|
qk-clip-latent-mtp|2|$latent, mtp_layers: 1|$(p 1 1 2 3 1f1b) $clip=0.02|
offloaded|2|$grouped|$(p 1 1 2 1 1f1b) train.device=cuda train.precision=bf16 $offload|
islands|2|$grouped|$(p 2 1 1 1 1f1b) outer.every=1|
islands-streams|1|$gpt2|$streams outer.compress=int4 train.steps=6|
resumed-elsewhere|4|$grouped|$(p 2 1 2 1 1f1b) train.precision=bf16|$(p 1 2 2 3 gpipe) train.precision=bf16"

configuration() { # MODEL -> FILE
    cat > "$2" << END
model: {$1, vocab_size: 259, max_sequence: 32}
data: {train: $top/data}
train: {steps: 3, sequence: 32, micro_batch: 2, global_batch: 24, precision: fp32, device: cpu, threads: 1, seed: 7}
optimizer: {lr: 3e-3, schedule: constant}
checkpoint: {every: 3, resume: auto}
evaluate: {every: 0}
run: {tensorboard: false, hang_seconds: 120}
END
}

# The budget is half of what recomputing everything would save, by the old build's plans.
with_budget() { # CONFIG OVERRIDES -> the overrides, their BUDGET in bytes
    local some=() how
    case $2 in *BUDGET*) ;; *) echo "$2" && return ;; esac
    for how in none full; do
        # shellcheck disable=SC2086
        some+=("$("$old" plan "$1" --json parallel.data=1 ${2/memory.budget=BUDGET/} memory.recompute=$how |
            grep -o '"arena_bytes": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -1)")
    done
    echo "${2/BUDGET/$(((some[0] + some[1]) / 2))}"
}
