/* Choices of tokens for the loss that balances the experts of routers. */
#pragma once

/* Tokens over which a loss takes the load of each expert, f, and its mean probability, P (2101.03961): with E experts
 * it is E sum f P, 1 where all are alike. */
typedef enum layer_balance {
    LAYER_BALANCE_SEQUENCE, /* a sample: no layout changes it */
    LAYER_BALANCE_LAYER,    /* a layer's tokens of a micro-batch */
    /* f: a layer's tokens of the step's micro-batches so far, with this one, of all ranks that divide samples
     * (2501.11873); P: this rank's tokens of this micro-batch. So each P is weighed by the loads known when it is made,
     * and the last micro-batch's P by the loads of the whole step. */
    LAYER_BALANCE_BATCH,
    LAYER_BALANCE_POOLED, /* the tokens of all layers, as transformers has it; f sums to the experts of a token */
} layer_balance;
