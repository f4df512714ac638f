/* Over what the loss that balances the experts of routers is taken. */
#ifndef PHALANX_LAYERS_BALANCE_H
#define PHALANX_LAYERS_BALANCE_H

/* Over what a loss that balances experts takes the load of each, f, and its mean probability, P (2101.03961): with E
 * experts it is E sum f P, 1 where all are alike. */
typedef enum layer_balance {
    LAYER_BALANCE_SEQUENCE, /* a sample: no layout changes it */
    LAYER_BALANCE_LAYER,    /* a layer's tokens of a micro-batch */
    LAYER_BALANCE_POOLED,   /* the tokens of all layers, as transformers has it; f sums to the experts of a token */
} layer_balance;

#endif
