#!/bin/sh
# Each line is a bug put into a CUDA kernel; the tests of that kernel, executed on the shim, must fail. A mutant that
# does not change the text, or does not compile, is an error of this list. Usage: tests/cuda/test_cuda_mutants.sh BUILD
# [FILTER]
#
# `build` says who is to find it: plain (the scheduler, poisoned memory and the comparison), asan, or race
# (tests/cuda/shim/race.cc). BUILD/shim and BUILD/race hold the objects of test_cuda_kernels and test_cuda_races, and
# BUILD/plain those without a sanitizer. A mutant is done at the first failure, so that compiling takes longest: plain
# ones are not optimised. Two mutants run at a time.
set -u
build=$1
filter=${2:-}
cuda=${CUDA_HOME:-/usr/local/cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build | mutated file | .cu file to compile | cases | sed expression | what is wrong
cat >"$work/list" <<'LIST'
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,block_barrier(); /\* the keys have been copied.*,,|no barrier before the keys are read
race|flash_forward.cu|flash_forward.cu|attention/flash_64|s,block_barrier(); /\* the values have been copied.*,,|no barrier before the values are read
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,copy_wait<0>();,,|no wait for copies
plain|flash_forward.cu|flash_forward.cu|attention/flash_128|s,copy_wait<0>();,copy_wait<1>();,|waits leave one group too many under way
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,token_sees(query + half \* 8\,,token_sees(query + half * 8 - 1\,,|the mask hides a query's own key
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,low\[half\]\, at),low[half] - 1\, at),|one key of the previous document is seen
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,most\[half\] = top;,most[half] = fmaxf(top\, 0.0f);,|the running maximum is not the maximum
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,sum\[half\] \*= shrink;,,|the running sum is not rescaled
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,low_last = in.lowest(of\, end - 1),low_last = 0,|tiles at a document's start are not masked
plain|flash.cuh|flash_forward.cu|attention/flash_64|s,right\[0\]\, right\[1\],right[0]\, right[2],|wrong fragment index in a product
plain|flash.cuh|flash_forward.cu|attention/flash_64|s,load_matrix_transposed(right,load_matrix(right,|values are not transposed
plain|flash.cuh|flash_forward.cu|attention/flash_64|s,n / 8 + i / 2\]\[i % 2 \* 2\],n / 8 + i % 2][i / 2 * 2],|probabilities in the wrong fragment
plain|flash.cuh|flash_forward.cu|attention/flash_64|s,(i \* heads + head),head,|lse of every sample is written where the first's is
plain|flash.cuh|flash_forward.cu|attention/flash_96|s,half \* 8 + lane / 4;,half * 8 + lane % 8;,|accumulators written to the wrong rows
plain|flash.cuh|flash_forward.cu|attention/flash_64|s,^    warp_barrier();,,|no warp barrier around the tile that is written
asan|flash.cuh|flash_forward.cu|attention/flash_64|s,bool valid = first + row < end;,bool valid = first + row <= end;,|a row past the end is fetched
plain|flash_backward.cu|flash_backward.cu|attention/flash_64|s,block_barrier(); /\* this stage.*,,|no barrier between stages
plain|flash_backward.cu|flash_backward.cu|attention/flash_64|s,copy_wait<0>();,copy_wait<1>();,|waits leave one group too many under way
plain|flash_backward.cu|flash_backward.cu|attention/flash_64|s,fetch_queries<T\, D\, E\, M>(tiles + (stage ^ 1),fetch_queries<T\, D\, E\, M>(tiles + stage,|a stage is overwritten while it is read
plain|flash_backward.cu|flash_backward.cu|attention/flash_80|s,dp\[n\]\[i\] - facts->delta,dp[n][i] + facts->delta,|delta with the wrong sign
plain|flash_backward.cu|flash_backward.cu|attention/flash_128|s,token_sees(query + column\,,token_sees(INT32_MAX\,,|gradients flow to keys of the future
plain|flash_backward.cu|flash_backward.cu|attention/flash_128|s,last_head = heads_first(kv_head + 1\, in.heads\, in.kv_heads),last_head = heads_first(kv_head\, in.heads\, in.kv_heads) + 1,|one head of a group makes dk and dv
race|flash_backward.cu|flash_backward.cu|attention/narrow|s,block_barrier(); /\* no thread reads the only stage.*,,|the only stage is overwritten while it is read
plain|flash_backward.cu|flash_backward.cu|attention/narrow|s,large_fit<T\, 256>(64\, 32) ? ,true ? ,|large tiles on a GPU without the memory for them
plain|flash_forward.cu|flash_forward.cu|attention/divided_64|s,keys_end = in.keys_end(of\, end - 1),keys_end = end,|queries of a later run see the keys of the first
plain|flash_forward.cu|flash_forward.cu|attention/divided_64|s,of.shift + first + a_row + m \* 16 + lane / 4\, key,first + a_row + m * 16 + lane / 4\, key,|a later run is masked as the first
plain|flash.cuh|flash_backward.cu|attention/divided_64|s,if (at.of.keys != keys),if (false),|dk and dv of another sample's queries
plain|flash_backward.cu|flash_backward.cu|attention/divided_64|s,at.of.shift + at.query\,,at.query\,,|dk and dv of a later run are masked as the first
plain|attention.cu|attention.cu|attention/divided_by_warps|s,end = in.keys_end(of\, query),end = query + 1,|dq of a later run sees the keys of the first
plain|pointwise.cu|pointwise.cu|pointwise/arrange|s,from = inverse ? place : row,from = row,|what was arranged does not come back
plain|attention.cu|attention.cu|attention/any_size|s,warp_largest(score)),score),|lanes disagree about the maximum
plain|attention.cu|attention.cu|attention/decode|s,block_barrier();,,|warps join before all have finished
plain|vector.cuh|norm.cu|rows/norms|s,^    block_barrier();$,,|a block sum is read before it is complete
race|vector.cuh|norm.cu|rows/norms|s,block_barrier(); /\* the last.*,,|a block sum is overwritten while it is read
plain|norm.cu|norm.cu|rows/norms|s,variance = block_sum(squares\, 0).a,variance = sums.b,|the variance is not about the mean
plain|norm.cu|norm.cu|rows/norms|s,- n\[i\] \* mean_gn,,|a norm's gradient without its projection
plain|norm.cu|norm.cu|rows/norms|s,weight\[i\] += offset;,,|a norm of 1 + w forgets its offset backward
plain|heads.cu|heads.cu|rows/head_norm|s, + offset));,));,|a head's norm forgets its offset
plain|heads.cu|heads.cu|rows/rope|s,front + 2 \* half,front + half,|what is copied lies in the second half
plain|heads.cu|heads.cu|rows/rope|s,b\[i\] \* cosine\[i\] + first,b[i] * cosine[i] - first,|rotation by a reflection
plain|heads.cu|heads.cu|rows/rope|s,o->at.rotation.interleaved ? rope_rotate,false ? rope_rotate,|halves for neighbours
plain|heads.cu|heads.cu|rows/rope|s,(V + i) % 2 ?,(V + i) % 2 == 0 ?,|the neighbours of the second vector change places
plain|heads.cu|heads.cu|latent/rope|s,head < x.heads ? part.front : 0,0,|the first elements of a head rotate, not the last
plain|heads.cu|heads.cu|latent/rope|s,else if (front == 0),else if (false),|what is in front of the key they share is copied
plain|latent.cu|latent.cu|latent/keys|s,head < of.heads; head++,head < 1; head++,|the cotangent of a shared key is that of one head
plain|latent.cu|latent.cu|latent/keys|s,to.kr_pitch + within - to.nope,to.kr_pitch + within % to.rope,|a shared key begins within itself
plain|latent.cu|latent.cu|latent/decode|s,float score = in.scale \*,float score =,|scores without their scale
plain|latent.cu|latent.cu|latent/decode|s,in.positions\[sample\]) \* width + column,in.positions[sample] + 1) * width + column,|latents are kept one position late
plain|latent.cu|latent.cu|latent/decode|s,sums\[column\] \* seen.shrink;,sums[column];,|sums are not rescaled as the largest score grows
plain|latent.cu|latent.cu|latent/decode|s,in.heads \* in.nope + (int64_t)head,in.nope + (int64_t)head,|values are made by the rows of keys
race|latent.cu|latent.cu|latent/decode|s,block_barrier(); /\* the chunk.*,,|a chunk is weighed before its scores are there
race|latent.cu|latent.cu|latent/decode|s,block_barrier(); /\* no warp reads scores.*,,|scores are overwritten while they are read
race|latent.cu|latent.cu|latent/decode|s,block_barrier(); /\* no thread reads.*,,|the next chunk's scores are written while this one's are read
plain|device.cuh|latent.cu|latent/large|s,int failed = allow_shared(kernel\, shared),int failed = 0,|more shared memory than a block has unasked
plain|width.cu|width.cu|rows/width_norm|s,x\[i\] \* scale \* (w\[i\] + n.offset),x[i] * scale * w[i],|a norm over all heads forgets its offset
plain|width.cu|width.cu|rows/width_norm|s,squares / s.width,squares / (float)s.columns,|a norm over all heads takes the mean over one rank
plain|width.cu|width.cu|rows/width_norm|s,- x\[i\] \* scale \* mean,,|a gradient over all heads without its projection
plain|width.cu|width.cu|rows/width_norm|s,which ? blocks \* q.columns : 0,0,|shares of the weights of k lie on those of q
race|heads.cu|heads.cu|rows/head_norm|s,^    block_barrier();,,|weights' gradients are added before they are there
plain|norm.cu|norm.cu|rows/wide|s,kernel = shared ? norm,kernel = true ? norm,|a norm's row that does not fit into shared memory is kept there
plain|norm.cu|norm.cu|rows/norms|s,load_kept<HELD>(sum\, db,load_kept<HELD>(sum\, dw,|a norm's bias has the gradient of its weight
race|vector.cuh|norm.cu|rows/banks|s,HELD \&\& V == 8 ? piece ^,false ? piece ^,|pieces of a norm's row meet in a bank
race|vector.cuh|norm.cu|rows/banks|s,each = V < 4 ? V : 4,each = 1,|a norm's row is kept a number at a time
race|vector.cuh|width.cu|rows/banks|s,HELD \&\& V == 8 ? piece ^,false ? piece ^,|pieces of the row of a norm over all heads meet in a bank
plain|device.cuh|norm.cu|rows/wide|s,bytes + SHARED_STATIC <= SHARED_DEFAULT,bytes <= SHARED_DEFAULT,|what a kernel declares is not counted to its shared memory
plain|grouped.cu|grouped.cu|grouped/rows|s,copy_wait<STAGES - 2>();,copy_wait<STAGES - 1>();,|a step of an expert's product is read before it is there
race|grouped.cu|grouped.cu|grouped/rows|s,block_barrier(); /\* this step is there; no.*,,|experts' tiles are read and written at once
plain|grouped.cu|grouped.cu|grouped/rows|s,tile -= all;,,|experts beyond a warp's lanes find no rows
plain|grouped.cu|grouped.cu|grouped/rows|s,lane >= step ? sum : 0,sum,|tiles are counted round the warp
plain|grouped.cu|grouped.cu|grouped/rows|s,end = warp_from(to\, who);,end = warp_from(to\, who) - 1;,|an expert's last row is lost
plain|grouped.cu|grouped.cu|grouped/rows|s,return first < end;,return false;,|rows of nobody are left as they were
plain|grouped.cu|grouped.cu|grouped/rows|s,of.depth = expert < 0 ? 0 : ,of.depth = ,|rows of nobody are multiplied
plain|grouped.cu|grouped.cu|grouped/rows|s,high + of->experts + 1,high + 1,|there are too few tiles for short experts
plain|grouped.cu|grouped.cu|grouped/rows|s,lane / 8 % 2 \* 8);,lane / 16 * 8);,|fragments of a weight are swapped
plain|grouped.cu|grouped.cu|grouped/sums|s,lane % 8 + lane / 16 \* 8) \* TRANSPOSED,lane % 16) * TRANSPOSED,|fragments of a turned operand are swapped
plain|grouped.cu|grouped.cu|grouped/sums|s,row < depth \&\& column < across : ,column < across : ,|a sum goes on over the next expert's rows
plain|grouped.cu|grouped.cu|grouped/sums|s,was = \*at;,,|an expert's gradient is written over
plain|grouped.cu|grouped.cu|grouped/sums|s,accumulate ? to\[i \* in.c.pitch + j\] : 0.0f,0.0f,|a gradient of odd size is written over
race|grouped.cu|grouped.cu|grouped/sums|s,block_barrier(); /\* the last step has.*,,|plain tiles are overwritten while they are read
plain|grouped.cu|grouped.cu|grouped/rows|s,of->n % PIECE == 0 && of->k % PIECE == 0,true,|half a piece beyond an odd size is read
plain|reduce.cu|reduce.cu|rows/column_sums|s,^    block_barrier();,,|partial sums are read before they are written
plain|reduce.cu|reduce.cu|rows/norms|s,part\[k \* LANES + lane\],part[k * LANES],|the last sum adds another column's shares
plain|attention.cu|attention.cu|attention/any_size|s,mask = lanes / 2,mask = lanes / 4,|half the lanes' share of delta is lost
plain|embedding.cu|embedding.cu|rows/embedding|s,block_barrier(); /\* the list is there.*,,|a list is read before it is written
plain|embedding.cu|embedding.cu|rows/embedding|s,block_barrier(); /\* the window.*,,|a window's list is read before it is written
plain|embedding.cu|embedding.cu|rows/embedding|s,listed\[k\] < listed,listed[k] > listed,|rows are added in descending order
plain|embedding.cu|embedding.cu|rows/embedding|s,if (lane == 0),if (lane == 0 \&\& warp < 7),|one warp's count is never written
plain|cross_entropy.cu|cross_entropy.cu|loss|s,^    block_barrier();,,|statistics are joined before they are written
plain|cross_entropy.cu|cross_entropy.cu|loss|s,d - scale : d,d : d,|the gradient forgets the target
plain|cross_entropy.cu|cross_entropy.cu|loss|s,column + i < count ? x\[i\] : -INFINITY,x[i],|padding columns are in the softmax
plain|flash_forward.cu|flash_forward.cu|attention/capped|s,short_tanh(score\[m\]\[n\]\[i\] \* factor),score[m][n][i],|the cap of scores is forgotten
plain|flash_forward.cu|flash_forward.cu|attention/capped|s,exponent_of<CAP>(in) + logf,in.scale + logf,|the largest capped score is scaled once more in lse
plain|flash_backward.cu|flash_backward.cu|attention/capped|s, \* (CAP ? 1.0f - s \* s : 1.0f),,|dq without the slope of the cap
plain|flash_backward.cu|flash_backward.cu|attention/capped|s,score\[n\]\[i\] \* (1.0f - s \* s),score[n][i],|dk without the slope of the cap
plain|attention.cu|attention.cu|attention/capped|s,score \* score / (cap \* cap),0.0f,|the slope of the cap is forgotten
plain|flash_forward.cu|flash_forward.cu|attention/sinks|s,in.sinks \&\& lane % 4 == 0 ? 1.0f,in.sinks ? 1.0f,|a sink counts once for each lane of a row
plain|flash_forward.cu|flash_forward.cu|attention/sinks|s,sink_of(in.sinks\, head) / exponent_of<CAP>(in),sink_of(in.sinks\, head),|a sink is scaled as products are
plain|flash_forward.cu|flash_forward.cu|attention/sinks|s,sink_of(in.sinks\, head),sink_of(in.sinks\, kv_head),|the sink of another head
plain|attention.cu|attention.cu|attention/sinks|s,sink > -INFINITY ? 1.0f : 0.0f,0.0f,|a sink is not in the sum
plain|attention.cu|attention.cu|attention/sinks|s,sum -= expf(sink,sum += expf(sink,|a sink's gradient of the other sign
plain|attention.cu|attention.cu|attention/sinks|s,accumulate ? to\[head\] + sum,false ? to[head] + sum,|a sink's gradient is written over
plain|attention.cu|attention.cu|attention/decode_sinks|s,warp == 0 ? sink_of,true ? sink_of,|every warp of a decoded token has the sink
plain|attention.cu|attention.cu|attention/decode_sinks|s,warp == 0 ? sink_of(sinks\, head),warp == 0 ? sink_of(sinks\, kv_head),|decoding takes another head's sink
plain|pointwise.cu|pointwise.cu|pointwise/swiglu_clamped|s,return gate > limit ? 0.0f : s,return s,|a gate beyond its limit has a slope
plain|pointwise.cu|pointwise.cu|pointwise/swiglu_clamped|s,up < -limit ? -limit : up,up,|up has no lower limit
plain|pointwise.cu|pointwise.cu|pointwise/swiglu_clamped|s, \* (1.0f + clamped(up)), * clamped(up),|up without 1
plain|grouped.cu|grouped.cu|grouped/rows|s,one += to_float(of.bias\[j\]);,,|every other column has no bias
plain|grouped.cu|grouped.cu|grouped/rows|s,expert \* in.n + column : nullptr,column : nullptr,|all experts have the bias of the first
plain|grouped.cu|grouped.cu|grouped/rows|s,in.bias \&\& expert >= 0,in.bias,|rows of nobody have a bias
plain|grouped.cu|grouped.cu|grouped/columns|s,row < offsets\[blockIdx.y + 1\] \&\&,row < offsets[blockIdx.y + 1] - 1 \&\&,|an expert's last row is not in its bias
plain|grouped.cu|grouped.cu|grouped/columns|s,\*to = accumulate ? \*to + total,*to = false ? *to + total,|the gradient of a bias is written over
plain|attention.cu|attention.cu|attention/decode|s,tanhf(product \* scale / cap),tanhf(product / cap) * scale,|decoding scales after the cap
plain|pointwise.cu|pointwise.cu|pointwise/soft_cap|s,4.0f \* s \* (1.0f - s),(1.0f - s),|the slope of a cap is another one
plain|pointwise.cu|pointwise.cu|pointwise/swiglu|s,(1.0f + x \* (1.0f - s)),1.0f,|the slope of silu is sigmoid
plain|pointwise.cu|pointwise.cu|pointwise/geglu|s,up\[i\] = d\[i\] \* f(gate,up[i] = d[i] * (gate,|the gate's branch is not the gate's function
plain|pointwise.cu|pointwise.cu|pointwise/gelu_exact|s,0.5f \* erfcf(-,0.5f * erfcf(,|the integral from the other end
plain|pointwise.cu|pointwise.cu|pointwise/scale|s,return factor \* x;,return x;,|a multiple is the value
plain|pointwise.cu|pointwise.cu|pointwise/dropout|s,element + (uint64_t)i) / 4,element + (uint64_t)i) / 8,|draws are used twice
asan|pointwise.cu|pointwise.cu|pointwise/copy|s,if (column >= words ,if (column > words ,|one word too many is copied
plain|update.cu|update.cu|update/adamw|s,bool skip = control\[CONTROL_SKIP\] != 0,bool skip = false,|a skipped step changes weights
plain|update.cu|update.cu|update/adamw|s,blockIdx.x >= list.at,blockIdx.x > list.at,|a block works on the wrong tensor
plain|update.cu|update.cu|update/lion|s,m = f.beta2 \* m + (1.0f - f.beta2) \* g;,m = direction;,|the momentum is the direction
plain|update.cu|update.cu|update/narrow|s,row \* s.stride + column,row * s.columns + column,|rounding depends on the layout
plain|update.cu|update.cu|update/narrow|s,(uint32_t)(s.site + operand),(uint32_t)s.site,|states are rounded by the same numbers
plain|update.cu|update.cu|update/muon_polynomial|s,row == column ? a,row == 0 ? a,|the diagonal is lost
plain|compress.cu|compress.cu|compress/int8|s,+ feedback\[i\],,|what was kept is not added
plain|compress.cu|compress.cu|compress/int4|s,if (block_any(!finite)),if (false),|a chunk that is not finite is written
plain|compress.cu|compress.cu|compress/bf16|s,fill(out\, bytes\, p.room\, 0);,,|the end of a part is not written
plain|compress.cu|compress.cu|compress/bf16|s,(part < more ? part : more),0,|parts of unequal rows begin too early
plain|compress.cu|compress.cu|compress/topk|s,broken ? NAN : ,,|nonsense is decoded
plain|compress.cuh|compress.cu|compress/bf16|s,(uint16_t)(bits - 1),bits,|what is huge is rounded to infinity
plain|compress.cuh|compress.cu|compress/int8|s,warp_largest(largest),largest,|lanes have scales of their own
plain|compress.cuh|compress.cu|compress/int4|s,(other + 8) << 4,other << 4,|the high half has no offset
plain|compress.cuh|compress.cu|compress/topk|s,equal\[w\] < p.equals ? p.equals - equal\[w\] : 0,p.equals,|of equals each warp takes its first
plain|compress.cuh|compress.cu|compress/topk|s,bit >= 0,bit > 0,|the threshold's last bit is not looked for
plain|compress.cuh|compress.cu|compress/topk|s,count_bits(equal \& before) < equals,equals > 0,|of equals more are taken than there is room for
race|compress.cuh|compress.cu|compress/topk|s,block_barrier(); /\* all are chosen.*,,|levels of what is not chosen yet
plain|compress.cuh|compress.cu|compress/topk|s,bit % 2 \* WARPS,0,|counts are overwritten while they are read
plain|compress.cuh|compress.cu|compress/topk|s,fabsf(x) > middle,fabsf(x) >= middle,|a magnitude in the middle is the larger
plain|compress.cuh|compress.cu|compress/dct|s,rounded_product(element\, b\[WARP\]),rounded_product(element\, b[0]),|half the frequencies
plain|compress.cuh|compress.cu|compress/dct|s,warp_barrier(); /\* this one.*,,|a run is written before it is there
plain|compress.cuh|compress.cu|compress/dct|s,block_barrier(); /\* the basis.*,,|the basis is read before it is there
plain|experts.cu|experts.cu|experts/odd_choices|s,other_id < id)),other_id > id)),|of equal scores lanes take the higher id
plain|experts.cu|experts.cu|experts/odd_choices|s,isnan(biased) ? INFINITY : biased,biased,|a score that is no number is never chosen
plain|experts.cu|experts.cu|experts/route|s,of.gone |= ~kept;,,|a choice from all groups
plain|experts.cu|experts.cu|experts/route|s,k < as.group_best,k < 1,|a group's best expert alone
plain|experts.cu|experts.cu|experts/route|s,1.0f / warp_sum(sum),1.0f / sum,|lanes have softmaxes of their own
plain|experts.cu|experts.cu|experts/route|s,bias \&\& expert < as.experts ? score,false ? score,|the bias of a choice is forgotten
plain|experts.cu|experts.cu|experts/route|s,as.renormalise ? dot / as.scale : 0.0f,0.0f,|the slope of a choice forgets the sum
plain|experts.cu|experts.cu|experts/route|s,slope /= 1.0f + expf,slope *= 1.0f + expf,|the slope of a sigmoid is another one
plain|experts.cu|experts.cu|experts/route|s,total\[i\] \*= -dot,total[i] = 0.0f,|experts that are not chosen have no slope
race|experts.cu|experts.cu|experts/assign|s,warp_barrier(); /\* all have read.*,,|numbers are written before all have read them
race|experts.cu|experts.cu|experts/assign|s,warp_barrier(); /\* the last have.*,,|numbers are read before they are written
plain|experts.cu|experts.cu|experts/assign|s,same \&\& other < lane,same \&\& other != lane,|assignments of one expert at once share a place
plain|experts.cu|experts.cu|experts/assign|s,^        before += all;,,|chunks beyond the first 32 begin too early
plain|experts.cu|experts.cu|experts/assign|s,^        before += sum;,,|experts beyond the first 32 begin too early
race|experts.cu|experts.cu|experts/overflow|/counted\[me\] = own;/{n;s,block_barrier();,,}|what is over is added before all have counted
plain|experts.cu|experts.cu|experts/overflow|s,(float)(rows - as.room\[i\]),(float)rows,|all rows are over
plain|experts.cu|experts.cu|experts/overflow|s,as.bucket < BUCKETS \&\& rows > as.room,as.bucket < BUCKETS \&\& rows >= as.room,|a bucket that is full lacks room
plain|experts.cu|experts.cu|experts/assign|s,int64_t row = number - a.skip,int64_t row = number,|a later pass places the rows of the first
race|experts.cu|experts.cu|experts/slots_overflow|/counted\[i\] = 0;/{n;s,block_barrier();,,}|slots are counted before all counts are zero
plain|experts.cu|experts.cu|experts/slots_overflow|s,first += WARPS \* CHUNK,first += 2 * WARPS * CHUNK,|half of what goes to slots is not counted
plain|experts.cu|experts.cu|experts/slots|s,behind / size + (low ? 0 : more),behind / size,|slots of ranks that have an expert less are the first ones'
plain|experts.cu|experts.cu|experts/slots|s,within = behind % size,within = behind,|an expert in a slot is not counted from its rank's first
plain|experts.cu|experts.cu|experts/slots|s,row % each >= a.totals,row % each > a.totals,|a row behind a slot's last has an expert
plain|experts.cu|experts.cu|experts/slots|s,next\[slot\] = a.counts,next[slot] = 0 * a.counts,|chunks begin each slot anew
plain|experts.cu|experts.cu|experts/pack|s,row < of.offsets\[row / each + 1\],row < of.offsets[row / each],|a slot is filled up over its rows
plain|experts.cu|experts.cu|experts/exchange|s,row < row_count;,row < row_count - 1;,|a row that no token has is left as it was
plain|experts.cu|experts.cu|experts/exchange|s,weight \* value\[i\],value[i],|rows are sent without their weights
plain|experts.cu|experts.cu|experts/exchange|s,has \&\& of.weights ? ,false ? ,|rows are added without their weights
plain|experts.cu|experts.cu|experts/exchange|s,at += AHEAD,at += AHEAD + 1,|one row in five is passed by
plain|experts.cu|experts.cu|experts/exchange|s,there = of.row_ids\[at\] < 0,there = of.row_ids[at] >= 0,|a sum in place lacks its rows
plain|experts.cu|experts.cu|experts/exchange|s,bool there = y.at == addend.at,bool there = !addend.at || y.at == addend.at,|a token without rows or addend is left as it was
plain|experts.cu|experts.cu|experts/exchange|s,sum = warp_sum(sum);,,|a dot product is one lane's
plain|pointwise.cu|pointwise.cu|pointwise/keep|s, || (control .. control\[CONTROL_SKIP\] != 0),,|a skipped step changes what is kept
plain|balance.cu|balance.cu|balance/load|s,token_sample(token_positions ? token_positions\[token\] : token\, sequence),token_sample(token\, sequence),|tokens are counted where they lie
plain|balance.cu|balance.cu|balance/load|s,int failed = accumulate ? 0 : launch_zero.*,int failed = 0;,|counts begin where memory was
plain|balance.cu|balance.cu|balance/count|s,int failed = accumulate ?,int failed = !accumulate ?,|counts begin where memory was
plain|balance.cu|balance.cu|balance/bias|s,if (control\[CONTROL_SKIP\] != 0),if (false),|a skipped step moves a bias
plain|balance.cu|balance.cu|balance/share|s,(int64_t)experts \* counts\[e\]) / ,counts[e]) / ,|loads are shares, not multiples of the mean
plain|balance.cu|balance.cu|balance/bias|s,return warp_sum(sum);,return sum;,|the mean is of one lane's experts
plain|balance.cu|balance.cu|balance/bias|s,deficit > 0 ? rate : -rate,deficit > 0 ? -rate : rate,|biases move the other way
plain|balance.cu|balance.cu|balance/losses|s,of.sigmoid ? sigmoid_of(x).value : each,each,|probabilities of sigmoids are a softmax
plain|balance.cu|balance.cu|balance/losses|s,of.sigmoid ? sigmoid_of(x).slope : each,each,|a softmax is the slope of sigmoids
plain|balance.cu|balance.cu|balance/losses|s,scalars->batch_tokens,scalars->loss_tokens,|tokens of no target are not counted
plain|balance.cu|balance.cu|balance/losses|s,(load\[e\] - f.mean_load),load[e],|a gradient of probabilities without their sum
plain|balance.cu|balance.cu|balance/losses|s,k < SUM_THREADS / WARP,k < SUM_THREADS / WARP - 1,|the last warp's tokens are lost
race|balance.cu|balance.cu|balance/losses|s,^    block_barrier();,,|sums are read before they are there
plain|flash_forward.cu|flash_forward.cu|attention/flash_64|s,most\[m\]\[half\] \* in.scale;,most[m][half];,|the largest score is not scaled
plain|attention.cu|attention.cu|attention/any_size|s,of.row + query\] = s.most;,of.row + query] = s.most + logf(s.sum);,|the largest score is log sum exp
plain|qk_clip.cu|qk_clip.cu|qk_clip/largest|s,accumulate ? fmaxf(y\[blockIdx.x\]\, most) : most,most,|the largest of earlier micro-batches is forgotten
plain|qk_clip.cu|qk_clip.cu|qk_clip/largest|s,k < WARPS;,k < WARPS - 1;,|the last warp's numbers are lost
race|qk_clip.cu|qk_clip.cu|qk_clip/largest|s,^    block_barrier();,,|a block's largest is read before it is there
plain|qk_clip.cu|qk_clip.cu|qk_clip/factors|s,row < of.max_logit_rows;,row < of.layers;,|scores of other ranks' tokens are ignored
plain|qk_clip.cu|qk_clip.cu|qk_clip/factors|s,whole ? gamma : sqrtf(gamma),sqrtf(gamma),|what rotates takes the root of the factor
plain|qk_clip.cu|qk_clip.cu|qk_clip/factors|s, \&\& most < INFINITY,,|an infinite score makes weights zero
plain|update.cu|update.cu|update/factors|s,(i + j) / s.columns\];,i / s.columns];,|a vector's elements take the factor of its first
plain|optimizer.cu|optimizer.cu|optimizer/sum|s,k < SQUARE_WARPS,k < SQUARE_WARPS - 1,|one warp's squares are lost
race|optimizer.cu|optimizer.cu|optimizer/sum|s,^    block_barrier();,,|bins are read before they are written
plain|optimizer.cu|optimizer.cu|optimizer/sum|s,+= (int64_t)digit\[i\],+= i < 2 ? (int64_t)digit[i] : 0,|the highest digit is lost
LIST

compile() { # KIND ARGUMENTS...
    case $1 in
    plain) how=-O0 ;;
    asan) how='-O1 -fsanitize=address' ;;
    race) how='-O1 -fsanitize=thread' ;;
    esac
    shift
    ${CXX:-g++} -std=c++17 $how -w -fno-strict-aliasing "$@"
}
headers="-I. -Itests/cuda/shim -isystem $cuda/include"
for kind in plain asan race; do # what every unit includes, compiled once
    mkdir "$work/$kind"
    cp tests/cuda/shim/cuda_shim.h "$work/$kind"
    compile $kind -x c++-header tests/cuda/shim/cuda_shim.h $headers -o "$work/$kind/cuda_shim.h.gch" || exit 1
done

mutant() { # LINE
    line=$(sed -n "$1p" "$work/list")
    kind=${line%%|*} rest=${line#*|} file=${rest%%|*}
    rest=${rest#*|} unit=${rest%%|*}
    rest=${rest#*|} cases=${rest%%|*}
    rest=${rest#*|} edit=${rest%|*} what=${rest##*|} # the expression may hold the separator
    case $kind in
    plain) units=$build/plain others=$build/plain ;;
    asan) units=$build/shim others=$build/shim ;;
    race) units=$build/race others=$build/plain ;;
    esac
    case "$what" in *"$filter"*) ;; *) return 0 ;; esac
    tree="$work/$1"
    mkdir -p "$tree/kernels"
    cp -r kernels/cuda "$tree/kernels/cuda"
    sed -i "$edit" "$tree/kernels/cuda/$file"
    if cmp -s "$tree/kernels/cuda/$file" "kernels/cuda/$file"; then
        echo "UNCHANGED $unit: $what"
        return 1
    fi
    if ! compile $kind -x c++ -include "$work/$kind/cuda_shim.h" -I"$tree" $headers \
        -c "$tree/kernels/cuda/$unit" -o "$tree/mutant.o" 2>"$tree/errors"; then
        echo "DOES NOT COMPILE $unit: $what"
        head -3 "$tree/errors"
        return 1
    fi
    objects=$(ls "$units"/kernels/cuda/*.o "$others"/tests/cuda/shim/*.o "$others"/tests/cuda/*.o "$build/kernels/compress.o" \
        "$build/memory/dtype.o" "$build/memory/tensor.o" "$build/memory/log.o" "$build/memory/outlet.o" |
        grep -v "/kernels/cuda/${unit%.cu}.o")
    ${CXX:-g++} -rdynamic $([ $kind != asan ] || echo -fsanitize=address) -o "$tree/test" "$tree/mutant.o" $objects -ldl || return 1
    # the shim finds deadlocks itself: what takes for ever has not been caught; the limit leaves room for a busy machine
    CHECK_STOP=1 timeout 1800 "$tree/test" "$cases" >"$tree/output" 2>&1
    status=$?
    case $status in
    0) echo "SURVIVED $unit: $what"; return 1 ;;
    124) echo "TIMED OUT $unit: $what"; return 1 ;;
    esac
    said=$(grep -m1 -oE 'AddressSanitizer: [a-z-]+|shim: .*|FAILED.*' "$tree/output" | cut -c1-90)
    echo "caught $unit: $what (${said:-exit status $status})"
    rm -rf "$tree"
}

missed() { # N: what the Nth of two said is said again at the end, where a long log is read first
    failed=$((failed + 1))
    cat "$work/out.$1" >>"$work/missed"
}

lines=$(wc -l <"$work/list") failed=0 line=1
while [ $line -le "$lines" ]; do
    mutant $line >"$work/out.1" &
    first=$!
    second=
    if [ $((line + 1)) -le "$lines" ]; then
        mutant $((line + 1)) >"$work/out.2" &
        second=$!
    fi
    wait $first || missed 1
    cat "$work/out.1"
    if [ -n "$second" ]; then
        wait $second || missed 2
        cat "$work/out.2"
    fi
    line=$((line + 2))
done
[ $failed -eq 0 ] || cat "$work/missed"
echo "test_cuda_mutants: $lines mutants, $failed not caught"
[ $failed -eq 0 ]
